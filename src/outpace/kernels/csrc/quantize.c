/* Activations in the form the matmuls read.
 *
 * INT8: per group of 32, scale = max|x| / 127 and q = round to even of x * (127 / max|x|), as Q8_0 does but with a
 * float scale. Layout: rows in chunks, [chunk][group][row][32]. A group with NaN or infinity gets the scale NaN, so
 * that the row's outputs become NaN instead of something plausible. BF16 and F32: [chunk][k][row]. */
#include "linear_simd.h"

#include <math.h>

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
static int64_t even(int64_t cols) { return (cols + 1) / 2 * 2; }

int64_t op_act_bytes(int format, int rows, int64_t cols) {
    if (format != OP_ACT_INT8) return aligned(4 * rows * even(cols));
    const int64_t groups = act_groups(cols) * rows;
    return aligned(32 * groups) + 3 * aligned(4 * groups) + aligned(8 * groups);
}

op_act op_act_at(void *scratch, int format, int rows, int64_t cols) {
    op_act act = {format, rows, cols, scratch, NULL, NULL, NULL, NULL};
    if (format == OP_ACT_INT8) {
        const int64_t groups = act_groups(cols) * rows;
        char *p = (char *)scratch + aligned(32 * groups);
        act.scale = (float *)p;
        p += aligned(4 * groups);
        act.scaled_sum = (float *)p;
        p += aligned(4 * groups);
        act.offset8 = (int32_t *)p;
        p += aligned(4 * groups);
        act.offset6 = (int32_t *)p;
    }
    return act;
}

/* Rounds 32 values to int8; returns their scale and the sums of both halves. */
#if defined(OP_AVX2) || defined(OP_AVX512)
OP_INLINE float quantize_group(const float *x, int8_t *q, int32_t *sums) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 v[4], high = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        high = _mm256_max_ps(high, _mm256_andnot_ps(sign, v[i]));
        odd = _mm256_or_ps(odd, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
    }
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(high), _mm256_extractf128_ps(high, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    top = _mm_max_ss(top, _mm_movehdup_ps(top));
    const float most = _mm_cvtss_f32(top);
    const int finite = !_mm256_movemask_ps(odd) && most < INFINITY;
    const __m256 factor = _mm256_set1_ps(finite && most > 1e-35f ? 127.0f / most : 0.0f);
    __m256i n[4];
    for (int i = 0; i < 4; i++) {
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor));
        if (!finite) n[i] = _mm256_setzero_si256();
    }
    __m256i half[2];
    for (int i = 0; i < 2; i++) {
        half[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[2 * i], n[2 * i + 1]), 0xd8);
        __m256i pairs = _mm256_madd_epi16(half[i], _mm256_set1_epi16(1));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        sums[i] = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    }
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(half[0], half[1]), 0xd8);
    _mm256_storeu_si256((__m256i *)q, bytes);
    return finite ? (most > 1e-35f ? most / 127.0f : 0.0f) : NAN;
}
#else
static float quantize_group(const float *x, int8_t *q, int32_t *sums) {
    float most = 0.0f;
    int finite = 1;
    for (int i = 0; i < 32; i++) {
        const float size = fabsf(x[i]);
        finite = finite && size < INFINITY; /* false for NaN too */
        most = size > most ? size : most;
    }
    const int zero = !finite || most <= 1e-35f;
    const float factor = zero ? 0.0f : 127.0f / most;
    sums[0] = sums[1] = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = zero ? 0 : (int8_t)rintf(x[i] * factor);
        sums[i / 16] += q[i];
    }
    return finite ? (zero ? 0.0f : most / 127.0f) : NAN;
}
#endif

static void quantize_int8(const op_act *act, const float *x, int64_t ldx, int first, int count, int64_t g0, int64_t g1) {
    const int64_t groups = act_groups(act->cols), real = act->cols / 32;
    for (int64_t g = g0; g < g1; g++) {
        for (int m = 0; m < count; m++) {
            const int64_t at = first * groups + g * count + m;
            int8_t *q = (int8_t *)act->values + 32 * at;
            int32_t sums[2] = {0, 0};
            float scale = 0.0f;
            if (g < real)
                scale = quantize_group(x + (first + m) * ldx + 32 * g, q, sums);
            else
                memset(q, 0, 32);
            const int32_t sum = sums[0] + sums[1];
            act->scale[at] = scale;
            act->scaled_sum[at] = scale * (float)sum;
            act->offset8[at] = -128 * sum;
            act->offset6[2 * at] = -32 * sums[0];
            act->offset6[2 * at + 1] = -32 * sums[1];
        }
    }
}

static void convert(const op_act *act, const float *x, int64_t ldx, int first, int count, int64_t k0, int64_t k1) {
    const int64_t cols = even(act->cols);
    const int pairs = act->format == OP_ACT_BF16 && OP_BF16_PAIRS;
    for (int m = 0; m < count; m++) {
        const float *row = x + (first + m) * ldx;
        float *values = (float *)act->values + first * cols + m;
        uint32_t *words = (uint32_t *)act->values + first * cols / 2 + m;
        for (int64_t k = k0; k < k1; k += 2) {
            const float a = row[k], b = k + 1 < act->cols ? row[k + 1] : 0.0f;
            if (pairs) {
                words[k / 2 * count] = float_to_bf16(a) | (uint32_t)float_to_bf16(b) << 16;
            } else if (act->format == OP_ACT_BF16) {
                values[k * count] = bf16_to_float(float_to_bf16(a));
                values[(k + 1) * count] = bf16_to_float(float_to_bf16(b));
            } else {
                values[k * count] = a;
                values[(k + 1) * count] = b;
            }
        }
    }
}

void op_quantize_rows(const op_act *act, const float *x, int64_t ldx, int tid, int nt) {
    const int chunks = act->rows ? chunk_count(act->format, act->rows) : 0;
    const int64_t pieces = act->format == OP_ACT_INT8 ? act_groups(act->cols) : even(act->cols) / 2;
    const int64_t begin = pieces * tid / nt, end = pieces * (tid + 1) / nt;
    for (int c = 0; c < chunks; c++) {
        const int first = chunk_start(act->rows, chunks, c), count = chunk_start(act->rows, chunks, c + 1) - first;
        if (act->format == OP_ACT_INT8)
            quantize_int8(act, x, ldx, first, count, begin, end);
        else
            convert(act, x, ldx, first, count, 2 * begin, 2 * end);
    }
}
