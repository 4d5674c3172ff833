/* Weights times float activations: bf16 by bf16 on its own fast path, everything else through a tile of float values. */
#include "linear.h"
#include "linear_simd.h"

/* ---- bf16: one chain per (row, output); a machine without bf16 products takes even k, then odd k. ---- */

#if !defined(OP_AVX512)
/* The even or odd k of VL pairs. */
OP_INLINE fvec f_bf16(const uint8_t *p, const int odd) {
#if defined(OP_AVX2)
    const __m256i pairs = b_load(p);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000))
                                   : _mm256_slli_epi32(pairs, 16));
#else
    fvec r;
    LANES(bf16_to_float(load_u16(p + 4 * l + 2 * odd)));
    return r;
#endif
}
#endif

OP_INLINE void bf16_blocks(const int count, const int rows, const uint8_t *block, int64_t bytes,
                           const chunk_view *chunk) {
    const int64_t pairs = (chunk->cols + 1) / 2;
    const int64_t near = chunk->cached ? 0 : near_bytes(rows);
    fvec f[2][HALVES][MAX_CHUNK];
    UNROLL for (int b = 0; b < count; b++)
        UNROLL for (int h = 0; h < HALVES; h++)
            UNROLL for (int m = 0; m < rows; m++) f[b][h][m] = f_zero();
    const float *x = chunk->values;
    for (int64_t k = 0; k < pairs; k++) {
        UNROLL for (int b = 0; b < count; b++) prefetch_near(block + b * bytes + 64 * k + near);
#if defined(OP_AVX512)
        __m512bh w[2];
        UNROLL for (int b = 0; b < count; b++) w[b] = (__m512bh)b_load(block + b * bytes + 64 * k);
        UNROLL for (int m = 0; m < rows; m++)
            UNROLL for (int b = 0; b < count; b++)
                f[b][0][m] = _mm512_dpbf16_ps(f[b][0][m], w[b], (__m512bh)_mm512_set1_ps(x[m]));
#else
        /* One parity at a time and every x used at once: the accumulators take 12 of 16 registers. */
        UNROLL for (int odd = 0; odd < 2; odd++) {
            fvec w[2][HALVES];
            UNROLL for (int b = 0; b < count; b++)
                UNROLL for (int h = 0; h < HALVES; h++)
                    w[b][h] = f_bf16(block + b * bytes + 64 * k + 4 * VL * h, odd);
            UNROLL for (int m = 0; m < rows; m++) {
                const fvec value = f_set(x[odd * rows + m]);
                UNROLL for (int b = 0; b < count; b++)
                    UNROLL for (int h = 0; h < HALVES; h++) f[b][h][m] = f_fma(w[b][h], value, f[b][h][m]);
            }
        }
#endif
        x += OP_BF16_PAIRS ? rows : 2 * rows;
    }
    UNROLL for (int b = 0; b < count; b++)
        UNROLL for (int h = 0; h < HALVES; h++)
            UNROLL for (int m = 0; m < rows; m++)
                f_store(chunk->y + m * chunk->ldy + 16 * b + VL * h, f[b][h][m]);
}

/* One row alone has too few chains to hide the latency of its additions: two blocks at once. */
int linear_bf16_blocks_at_once(int rows) { return rows <= chunk_limit(OP_ACT_BF16) / 2 ? 2 : 1; }

void linear_bf16_blocks(int count, const uint8_t *block, int64_t bytes, const chunk_view *chunk) {
#define TWO(n)                                             \
    case n:                                                \
        if (count == 2)                                    \
            bf16_blocks(2, n, block, bytes, chunk);        \
        else                                               \
            bf16_blocks(1, n, block, bytes, chunk);        \
        return;
#define ONE(n)                                             \
    case n: bf16_blocks(1, n, block, bytes, chunk); return;
    switch (chunk->rows) {
        TWO(1) TWO(2) TWO(3)
#if defined(OP_AVX512)
        TWO(4) TWO(5) TWO(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12)
#else
        ONE(4) ONE(5) ONE(6)
#endif
    default: return;
    }
}

/* ---- any kind: 256 k of the block as floats in the first cache, then plain float chains ---- */

enum { TILE = 256 }; /* k: floats, 1 KiB; chosen by hand */

OP_INLINE void tile_rows(const int rows, const float *tile, int count, const float *x, float *sums) {
    fvec f[HALVES][MAX_CHUNK];
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int h = 0; h < HALVES; h++) f[h][m] = f_load(sums + 16 * m + VL * h);
    for (int k = 0; k < count; k++, x += rows) {
        fvec w[HALVES];
        UNROLL for (int h = 0; h < HALVES; h++) w[h] = f_load(tile + 16 * k + VL * h);
        UNROLL for (int m = 0; m < rows; m++) {
            const fvec value = f_set(x[m]);
            UNROLL for (int h = 0; h < HALVES; h++) f[h][m] = f_fma(w[h], value, f[h][m]);
        }
    }
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int h = 0; h < HALVES; h++) f_store(sums + 16 * m + VL * h, f[h][m]);
}

static void tile_any(int rows, const float *tile, int count, const float *x, float *sums) {
#define CASE(n) \
    case n: tile_rows(n, tile, count, x, sums); return;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if defined(OP_AVX512)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    default: return;
    }
}

void linear_float_block(int kind, const uint8_t *block, const chunk_view *chunk) {
    float tile[TILE * 16] __attribute__((aligned(64)));
    float sums[MAX_CHUNK * 16] __attribute__((aligned(64))) = {0};
    for (int64_t k = 0; k < chunk->cols; k += TILE) {
        const int count = (int)(chunk->cols - k < TILE ? chunk->cols - k : TILE);
        const float *values = tile;
        if (kind == OP_F32) {
            values = (const float *)(const void *)(block + 64 * k);
        } else if (kind == OP_F16) {
            for (int i = 0; i < count; i++)
                UNROLL for (int h = 0; h < HALVES; h++)
                    f_store(tile + 16 * i + VL * h, f_half(block + 32 * (k + i) + 2 * VL * h));
        } else {
            unpack_tile(kind, block, chunk->cols, k, count, tile);
        }
        tile_any(chunk->rows, values, count, chunk->values + k * chunk->rows, sums);
    }
    for (int m = 0; m < chunk->rows; m++) memcpy(chunk->y + m * chunk->ldy, sums + 16 * m, 64);
}
