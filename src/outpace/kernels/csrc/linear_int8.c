/* Integer weights times int8 activations.
 *
 * A group's 8 registers of weights are unpacked once and multiplied with every row of the chunk: an exact
 * integer dot product, then one float chain per (row, output): f += (dot * x_scale) * w_scale, and for kinds with a
 * minimum f += (sum(x) * x_scale) * w_min. The order and the operations do not depend on the number of rows. */
#include "linear.h"
#include "linear_simd.h"

/* Registers first .. first + 3 of a group, unsigned (8 bits: see b_byte). `values` already points at the half. */
OP_INLINE void unpack_half(const int kind, const uint8_t *values, const int first, bvec *w) {
    const int bits = layout_of(kind).bits;
    if (bits == 8) {
        UNROLL for (int i = 0; i < 4; i++) w[i] = b_byte(values + 64 * (first + i));
        return;
    }
    UNROLL for (int i = 0; i < 4; i++) {
        const bvec both = b_load(values + 64 * i);
        w[i] = first ? b_and(b_shr(both, 4), 15) : b_and(both, 15);
    }
    if (bits == 5) {
        const bvec upper = b_load(values + 256);
        UNROLL for (int i = 0; i < 4; i++) {
            const bvec bit = first ? b_shr(upper, i) : b_shl(upper, 4 - i);
            w[i] = b_or(w[i], b_and(bit, 16));
        }
    }
    if (bits == 6) {
        const bvec upper = b_load(values + 256 + 16 * first);
        UNROLL for (int i = 0; i < 4; i++) {
            const bvec two = i < 2 ? b_shl(upper, 4 - 2 * i) : b_shr(upper, 2 * i - 4);
            w[i] = b_or(w[i], b_and(two, 48));
        }
    }
}

/* The scale and minimum of one group for the VL outputs of a half. */
OP_INLINE void group_scales(const int kind, const uint8_t *head, int g, int h, fvec *scale, fvec *low) {
    switch (kind) {
    case OP_Q8_0:
        *scale = f_half(head + 32 * g + 2 * VL * h);
        break;
    case OP_Q4_0:
        *scale = f_half(head + 32 * g + 2 * VL * h);
        *low = f_mul(*scale, f_set(-8.0f));
        break;
    case OP_Q5_0:
        *scale = f_half(head + 32 * g + 2 * VL * h);
        *low = f_mul(*scale, f_set(-16.0f));
        break;
    case OP_Q4_1:
    case OP_Q5_1:
        *scale = f_half(head + 2 * VL * h);
        *low = f_half(head + 32 + 2 * VL * h);
        break;
    case OP_Q4_K:
    case OP_Q5_K:
        *scale = f_mul(f_half(head + 2 * VL * h), f_u8(head + 64 + 32 * g + VL * h));
        *low = f_mul(f_half(head + 32 + 2 * VL * h), f_u8(head + 80 + 32 * g + VL * h));
        break;
    default: /* Q6_K: two groups of 16, the second scale in `low` */
        *scale = f_mul(f_half(head + 2 * VL * h), f_i8(head + 64 + 32 * g + VL * h));
        *low = f_mul(f_half(head + 2 * VL * h), f_i8(head + 80 + 32 * g + VL * h));
        break;
    }
}

/* What follows a group's dot product. */
OP_INLINE fvec add_group(const int kind, fvec f, fvec dot, float scale, float scaled_sum, fvec w_scale, fvec w_low) {
    f = f_fma(f_mul(dot, f_set(scale)), w_scale, f);
    if (kind == OP_Q4_K || kind == OP_Q5_K) return f_fnma(w_low, f_set(scaled_sum), f);
    if (layout_of(kind).bits < 8) return f_fma(w_low, f_set(scaled_sum), f);
    return f;
}
OP_INLINE fvec add_q6(fvec f, ivec one, ivec two, float scale, fvec w_one, fvec w_two) {
    return f_fma(f_fma(f_int(two), w_two, f_mul(f_int(one), w_one)), f_set(scale), f);
}

/* `at`: where the group's first row lies in the chunk's arrays of a value for each group and row. */
#if HALVES == 1
/* One group with 32 registers: its 8 registers of weights stay, the rows pass. */
OP_INLINE void a_group(const int kind, const int fixed, const uint8_t *head, const uint8_t *values, int g,
                       const chunk_view *chunk, int64_t at, fvec f[HALVES][MAX_CHUNK]) {
    const int bits = layout_of(kind).bits;
    fvec w_scale, w_low = f_zero();
    group_scales(kind, head, g, 0, &w_scale, &w_low);
    bvec w[8];
    unpack_half(kind, values, 0, w);
    unpack_half(kind, values, 4, w + 4);
    const int32_t *x = (const int32_t *)(const void *)chunk->q + 8 * at, *offset6 = chunk->offset6 + 2 * at;
    UNROLL for (int m = 0; m < fixed; m++) {
        const float scale = chunk->scale[at + m];
        if (kind == OP_Q6_K) {
            const ivec one = i_dot(6, 4, w, x + 8 * m, i_set(offset6[2 * m]));
            const ivec two = i_dot(6, 4, w + 4, x + 8 * m + 4, i_set(offset6[2 * m + 1]));
            f[0][m] = add_q6(f[0][m], one, two, scale, w_scale, w_low);
        } else {
            const ivec start = bits == 8 ? i_set(chunk->offset8[at + m]) : i_zero();
            const fvec dot = f_int(i_dot(bits, 8, w, x + 8 * m, start));
            f[0][m] = add_group(kind, f[0][m], dot, scale, chunk->scaled_sum[at + m], w_scale, w_low);
        }
    }
}
#else
/* 16 k of all 16 outputs and row m: `part` holds the sums of the first 16 k, to which those of the second are added. */
OP_INLINE void row_half(const int kind, const int first, bvec w[HALVES][4], const uint8_t *bytes, const fvec *w_scale,
                        const fvec *w_low, const int32_t *x, const float *scale, const float *scaled_sum,
                        const int32_t *offset6, const int m, ivec part[HALVES][MAX_CHUNK], fvec f[HALVES][MAX_CHUNK]) {
    const int bits = layout_of(kind).bits;
    ivec sum[HALVES];
    i_half(bits, w, bytes, x + 8 * m, sum);
    UNROLL for (int h = 0; h < HALVES; h++) {
        if (!first) {
            part[h][m] = sum[h];
        } else if (kind == OP_Q6_K) {
            const ivec one = i_add(part[h][m], i_set(offset6[2 * m])), two = i_add(sum[h], i_set(offset6[2 * m + 1]));
            f[h][m] = add_q6(f[h][m], one, two, scale[m], w_scale[h], w_low[h]);
        } else {
            const fvec dot = f_int(i_join(bits, part[h][m], sum[h]));
            f[h][m] = add_group(kind, f[h][m], dot, scale[m], scaled_sum[m], w_scale[h], w_low[h]);
        }
    }
}

/* One group with 16 registers: 16 k of all 16 outputs are 8 registers that stay, so that a broadcast of x serves both
 * halves. */
OP_INLINE void a_group(const int kind, const int fixed, const uint8_t *head, const uint8_t *values, int g,
                       const chunk_view *chunk, int64_t at, fvec f[HALVES][MAX_CHUNK]) {
    const int rows = fixed ? fixed : chunk->rows;
    const int32_t *x = (const int32_t *)(const void *)chunk->q + 8 * at, *offset6 = chunk->offset6 + 2 * at;
    const float *scale = chunk->scale + at, *scaled_sum = chunk->scaled_sum + at;
    fvec w_scale[HALVES], w_low[HALVES] = {f_zero()};
    ivec part[HALVES][MAX_CHUNK];
    UNROLL for (int h = 0; h < HALVES; h++) group_scales(kind, head, g, h, &w_scale[h], &w_low[h]);
    UNROLL for (int first = 0; first < 8; first += 4) {
        bvec w[HALVES][4];
        UNROLL for (int h = 0; h < HALVES; h++) unpack_half(kind, values + 4 * VL * h, first, w[h]);
#define ROW_HALF                                                                                                 \
    row_half(kind, first, w, values + 64 * first, w_scale, w_low, x + first, scale, scaled_sum, offset6, m, part, f)
        if (fixed)
            UNROLL for (int m = 0; m < rows; m++) ROW_HALF;
        else
            _Pragma("GCC unroll 2") for (int m = 0; m < rows; m++) ROW_HALF;
    }
}
#endif

/* `fixed`: the number of rows where it is a constant, else 0. */
OP_INLINE void int8_block(const int kind, const int fixed, const uint8_t *block, const chunk_view *chunk) {
    const int_layout layout = layout_of(kind);
    const int64_t units = (chunk->cols / 32 + layout.groups_per_unit - 1) / layout.groups_per_unit;
    const int rows = fixed ? fixed : chunk->rows;
    const int64_t near = chunk->cached ? 0 : near_bytes(rows);
    const int64_t far = chunk->cached || rows <= 4 ? 0 : 8192;
    int64_t at = 0;
    fvec f[HALVES][MAX_CHUNK];
    UNROLL_ROWS for (int m = 0; m < rows; m++)
        UNROLL for (int h = 0; h < HALVES; h++) f[h][m] = f_zero();
    for (int64_t u = 0; u < units; u++) {
        const uint8_t *head = block + u * unit_bytes(layout), *values = head + layout.head_bytes;
        UNROLL for (int i = 0; i < layout.head_bytes; i += 64) prefetch_near(head + i + near);
        for (int g = 0; g < layout.groups_per_unit; g++, values += layout.group_bytes, at += rows) {
            UNROLL for (int i = 0; i < layout.group_bytes; i += 64) {
                prefetch_near(values + i + near);
                if (OP_FAR_PREFETCH && rows > 4) prefetch_far(values + i + far);
            }
            a_group(kind, fixed, head, values, g, chunk, at, f);
        }
    }
    UNROLL_ROWS for (int m = 0; m < rows; m++)
        UNROLL for (int h = 0; h < HALVES; h++) f_store(chunk->y + m * chunk->ldy + VL * h, f[h][m]);
}

/* With 32 registers every row count is compiled with its accumulators in registers. With 16 these live in the first
 * cache anyway: few rows save the ends of a loop, more become slower (AVX2; plain C does as AVX2). */
#define FIXED(n) \
    case n: int8_block(kind, n, block, chunk); return;
#if defined(OP_AVX512)
#define EACH_FIXED \
    FIXED(1) FIXED(2) FIXED(3) FIXED(4) FIXED(5) FIXED(6) FIXED(7) FIXED(8) FIXED(9) FIXED(10) FIXED(11)
#define OTHERS 12 /* chunk_limit */
#else
#define EACH_FIXED FIXED(1) FIXED(2) FIXED(3) FIXED(4)
#define OTHERS 0
#endif
#define KIND(name)                                                              \
    static void block_##name(const uint8_t *block, const chunk_view *chunk) {   \
        const int kind = name;                                                  \
        switch (chunk->rows) {                                                  \
            EACH_FIXED                                                          \
        default: int8_block(kind, OTHERS, block, chunk); return;                \
        }                                                                       \
    }
KIND(OP_Q4_0)
KIND(OP_Q4_1)
KIND(OP_Q5_0)
KIND(OP_Q5_1)
KIND(OP_Q8_0)
KIND(OP_Q4_K)
KIND(OP_Q5_K)
KIND(OP_Q6_K)

void linear_int8_block(int kind, const uint8_t *block, const chunk_view *chunk) {
    switch (kind) {
    case OP_Q4_0: block_OP_Q4_0(block, chunk); return;
    case OP_Q4_1: block_OP_Q4_1(block, chunk); return;
    case OP_Q5_0: block_OP_Q5_0(block, chunk); return;
    case OP_Q5_1: block_OP_Q5_1(block, chunk); return;
    case OP_Q8_0: block_OP_Q8_0(block, chunk); return;
    case OP_Q4_K: block_OP_Q4_K(block, chunk); return;
    case OP_Q5_K: block_OP_Q5_K(block, chunk); return;
    case OP_Q6_K: block_OP_Q6_K(block, chunk); return;
    default: return;
    }
}
