/* The packed layout of weights.
 *
 * A matrix is cut into blocks of 16 outputs; a block is one contiguous stream over k. The last block is filled up
 * with zero rows. Integer kinds: a block is a sequence of units (1, 2 or 8 groups of 32 k), each a head with the scales
 * of its 16 outputs followed by the groups' values:
 *
 *   head   Q8_0, Q4_0, Q5_0: [2 groups][16] fp16 d          Q4_1, Q5_1: [16] fp16 d, [16] fp16 m
 *          Q4_K, Q5_K: [16] fp16 d, [16] fp16 dmin, 8 x ([16] u8 scale, [16] u8 min)
 *          Q6_K: [16] fp16 d, 32 bytes of nothing, 16 x [16] i8 scale
 *   values a group is 8 registers of 64 bytes, register i holding k = 4i .. 4i+3 of the 16 outputs:
 *          8 bits: the 8 registers (AVX-512: values + 128)
 *          others: 4 registers of low nibbles (register i low, register i + 4 high), then the upper bits:
 *          5 bits: one register, bit i of a byte belonging to register i; 6 bits: two, two bits for each register
 *
 * An odd number of groups in units of two is filled up with zeros. Float kinds: F32 and F16 are [k][16], BF16 is
 * [k / 2][16][2]. */
#ifndef OUTPACE_PACK_LAYOUT_H
#define OUTPACE_PACK_LAYOUT_H

#include "common.h"

#include <string.h>

OP_INLINE uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
OP_INLINE void store_u16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

OP_INLINE float bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
OP_INLINE uint32_t float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
OP_INLINE float bf16_to_float(uint16_t h) { return bits_to_float((uint32_t)h << 16); }

/* Round to nearest, ties to even; NaN stays NaN. */
OP_INLINE uint16_t float_to_bf16(float x) {
    const uint32_t bits = float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

OP_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = (float)fraction * 0x1p-24f;
    return sign ? -tiny : tiny;
}

/* Round to nearest, ties to even. */
OP_INLINE uint16_t float_to_half(float x) {
    const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* below the normal halves: multiples of 2^-24; adding 0.5 leaves them in the last bits */
        const uint32_t fraction = float_to_bits(bits_to_float(size) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | fraction);
    }
    const uint32_t rounded = size - 0x38000000u + 0xfffu + ((size >> 13) & 1);
    return (uint16_t)(sign | rounded >> 13);
}

typedef struct {
    int groups_per_unit, head_bytes, group_bytes, bits, k_quant;
} int_layout;

/* groups_per_unit is 0 for kinds that are not integers. */
OP_INLINE int_layout layout_of(int kind) {
    switch (kind) {
    case OP_Q4_0: return (int_layout){2, 64, 256, 4, 0};
    case OP_Q4_1: return (int_layout){1, 64, 256, 4, 0};
    case OP_Q5_0: return (int_layout){2, 64, 320, 5, 0};
    case OP_Q5_1: return (int_layout){1, 64, 320, 5, 0};
    case OP_Q8_0: return (int_layout){2, 64, 512, 8, 0};
    case OP_Q4_K: return (int_layout){8, 320, 256, 4, 1};
    case OP_Q5_K: return (int_layout){8, 320, 320, 5, 1};
    case OP_Q6_K: return (int_layout){8, 320, 384, 6, 1};
    default: return (int_layout){0, 0, 0, 0, 0};
    }
}

OP_INLINE int64_t unit_bytes(int_layout layout) {
    return layout.head_bytes + (int64_t)layout.groups_per_unit * layout.group_bytes;
}

/* Bytes of a block of 16 outputs; -1 when the kind is unknown or cols does not fit it. */
OP_INLINE int64_t block_bytes(int kind, int64_t cols) {
    if (cols <= 0) return -1;
    if (kind == OP_F32) return cols * 64;
    if (kind == OP_F16) return (cols + 1) / 2 * 64;
    if (kind == OP_BF16) return (cols + 1) / 2 * 64;
    const int_layout layout = layout_of(kind);
    if (!layout.groups_per_unit || cols % (layout.k_quant ? 256 : 32)) return -1;
    return (cols / 32 + layout.groups_per_unit - 1) / layout.groups_per_unit * unit_bytes(layout);
}

/* Groups of int8 activations, filled up to whole units of two. */
OP_INLINE int64_t act_groups(int64_t cols) { return (cols / 32 + 1) / 2 * 2; }

#endif
