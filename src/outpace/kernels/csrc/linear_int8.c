/* Integer weights times int8 activations.
 *
 * A group's 8 registers of weights are unpacked once and meet every row of the chunk: an exact integer dot product, then
 * one float chain per (row, output): f += (dot * x_scale) * w_scale, and for kinds with a minimum f += (sum(x) *
 * x_scale) * w_min. The order and the operations do not depend on the number of rows. */
#include "linear.h"
#include "linear_simd.h"

/* Registers first .. first + 3 of a group, unsigned (8 bits: as i_dot wants them). `values` already points at the half. */
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

#if HALVES == 1
/* One group with 32 registers: its 8 registers of weights stay, the rows pass. */
OP_INLINE void group_full(const int kind, const int rows, const uint8_t *head, const uint8_t *values, int g,
                          const int32_t *x, const float *scale, const float *scaled_sum, const int32_t *offset8,
                          const int32_t *offset6, fvec f[HALVES][MAX_CHUNK]) {
    const int bits = layout_of(kind).bits;
    fvec w_scale, w_low = f_zero();
    group_scales(kind, head, g, 0, &w_scale, &w_low);
    bvec w[8];
    unpack_half(kind, values, 0, w);
    unpack_half(kind, values, 4, w + 4);
    UNROLL_ROWS for (int m = 0; m < rows; m++) {
        if (kind == OP_Q6_K) {
            const ivec one = i_dot(6, 4, w, x + 8 * m, i_set(offset6[2 * m]));
            const ivec two = i_dot(6, 4, w + 4, x + 8 * m + 4, i_set(offset6[2 * m + 1]));
            f[0][m] = add_q6(f[0][m], one, two, scale[m], w_scale, w_low);
        } else {
            const ivec start = bits == 8 ? i_set(offset8[m]) : i_zero();
            const fvec dot = f_int(i_dot(bits, 8, w, x + 8 * m, start));
            f[0][m] = add_group(kind, f[0][m], dot, scale[m], scaled_sum[m], w_scale, w_low);
        }
    }
}
#else
/* One group with 16 registers: 16 k of all 16 outputs are 8 registers that stay, so that a broadcast of x serves both
 * halves; the first 16 k's sums wait in the first cache. 8-bit weights need two registers each: a quarter at a time. */
OP_INLINE void group_halves(const int kind, const int rows, const uint8_t *head, const uint8_t *values, int g,
                            const int32_t *x, const float *scale, const float *scaled_sum, const int32_t *offset8,
                            const int32_t *offset6, fvec f[HALVES][MAX_CHUNK]) {
    const int bits = layout_of(kind).bits;
    fvec w_scale[HALVES], w_low[HALVES] = {f_zero()};
    ivec part[HALVES][MAX_CHUNK];
    UNROLL for (int h = 0; h < HALVES; h++) group_scales(kind, head, g, h, &w_scale[h], &w_low[h]);
    UNROLL for (int first = 0; first < 8; first += 4) {
        bvec w[HALVES][4];
        UNROLL for (int h = 0; h < HALVES; h++) unpack_half(kind, values + 4 * VL * h, first, w[h]);
        for (int m = 0; m < rows; m++) {
            UNROLL for (int h = 0; h < HALVES; h++) {
                ivec start = first ? part[h][m] : i_zero();
                if (kind == OP_Q6_K) start = i_set(offset6[2 * m + first / 4]);
                if (bits == 8 && !OP_SIGNED_BYTES && !first) start = i_set(offset8[m]);
                const ivec sum = i_half(bits, w[h], x + 8 * m + first, start);
                if (!first)
                    part[h][m] = sum;
                else if (kind == OP_Q6_K)
                    f[h][m] = add_q6(f[h][m], part[h][m], sum, scale[m], w_scale[h], w_low[h]);
                else
                    f[h][m] = add_group(kind, f[h][m], f_int(i_whole(bits, sum)), scale[m], scaled_sum[m], w_scale[h],
                                         w_low[h]);
            }
        }
    }
}
#endif

OP_INLINE void int8_block(const int kind, const int rows, const uint8_t *block, const chunk_view *chunk) {
    const int_layout layout = layout_of(kind);
    const int64_t units = (chunk->cols / 32 + layout.groups_per_unit - 1) / layout.groups_per_unit;
    const int32_t *x = (const int32_t *)(const void *)chunk->q;
    const float *scale = chunk->scale, *scaled_sum = chunk->scaled_sum;
    const int32_t *offset8 = chunk->offset8, *offset6 = chunk->offset6;
    const int64_t near = chunk->cached ? 0 : rows <= 4 ? 2048 : 1024, far = chunk->cached || rows <= 4 ? 0 : 8192;
    fvec f[HALVES][MAX_CHUNK];
    UNROLL_ROWS for (int m = 0; m < rows; m++)
        UNROLL for (int h = 0; h < HALVES; h++) f[h][m] = f_zero();
    for (int64_t u = 0; u < units; u++) {
        const uint8_t *head = block + u * unit_bytes(layout), *values = head + layout.head_bytes;
        UNROLL for (int i = 0; i < layout.head_bytes; i += 64) prefetch_near(head + i + near);
        for (int g = 0; g < layout.groups_per_unit; g++) {
            UNROLL for (int i = 0; i < layout.group_bytes; i += 64) {
                prefetch_near(values + i + near);
                if (OP_FAR_PREFETCH && rows > 4) prefetch_far(values + i + far);
            }
#if HALVES == 1
            group_full(kind, rows, head, values, g, x, scale, scaled_sum, offset8, offset6, f);
#else
            group_halves(kind, rows, head, values, g, x, scale, scaled_sum, offset8, offset6, f);
#endif
            values += layout.group_bytes;
            x += 8 * rows;
            scale += rows;
            scaled_sum += rows;
            offset8 += rows;
            offset6 += 2 * rows;
        }
    }
    UNROLL_ROWS for (int m = 0; m < rows; m++)
        UNROLL for (int h = 0; h < HALVES; h++) f_store(chunk->y + m * chunk->ldy + VL * h, f[h][m]);
}

/* With 32 registers every row count is compiled with its accumulators in registers; with 16 they live in the first
 * cache anyway, and only a single row is worth a copy of its own. */
#if defined(OP_AVX512)
#define ROWS(kind)                                                                              \
    switch (chunk->rows) {                                                                      \
    case 1: int8_block(kind, 1, block, chunk); return;                                          \
    case 2: int8_block(kind, 2, block, chunk); return;                                          \
    case 3: int8_block(kind, 3, block, chunk); return;                                          \
    case 4: int8_block(kind, 4, block, chunk); return;                                          \
    case 5: int8_block(kind, 5, block, chunk); return;                                          \
    case 6: int8_block(kind, 6, block, chunk); return;                                          \
    case 7: int8_block(kind, 7, block, chunk); return;                                          \
    case 8: int8_block(kind, 8, block, chunk); return;                                          \
    case 9: int8_block(kind, 9, block, chunk); return;                                          \
    case 10: int8_block(kind, 10, block, chunk); return;                                        \
    case 11: int8_block(kind, 11, block, chunk); return;                                        \
    default: int8_block(kind, 12, block, chunk); return;                                        \
    }
#else
#define ROWS(kind)                                                                              \
    if (chunk->rows == 1)                                                                       \
        int8_block(kind, 1, block, chunk);                                                      \
    else                                                                                        \
        int8_block(kind, chunk->rows, block, chunk);                                            \
    return;
#endif

#define KIND(kind)                                                                              \
    static void block_##kind(const uint8_t *block, const chunk_view *chunk) { ROWS(kind) }
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
