/* Float vectors as wide as the machine's registers, written with the compiler's own vector types, so that
 * one source serves AVX-512, AVX2, NEON and plain machines. Sums have one order per width: results are the
 * same for every row count and thread count on one machine, not between machines of different width. */
#ifndef OUTPACE_PASS_VEC_H
#define OUTPACE_PASS_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VW 16
#elif defined(__AVX2__)
#define VW 8
#else
#define VW 4
#endif

/* Lanes of two vectors of four: 0 to 3 are those of a, 4 to 7 those of b. clang and GCC before 12 have one of the two
 * builtins each. */
#if defined(__clang__)
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (__typeof__(a)){i, j, k, l})
#endif
#define PASS_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef float vf_loose __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint16_t vh_loose __attribute__((vector_size(2 * VW), aligned(2), may_alias));

PASS_INLINE vf v_load(const float *p) { return (vf)*(const vf_loose *)p; }
PASS_INLINE void v_store(float *p, vf v) { *(vf_loose *)p = (vf_loose)v; }
PASS_INLINE vf v_set(float x) { return x - (vf){0}; }

PASS_INLINE vf v_fma(vf a, vf b, vf c) {
#if VW == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VW == 8 && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* yes where mask is all ones, no where it is zero */
PASS_INLINE vf v_pick(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
PASS_INLINE vf v_max(vf a, vf b) { return v_pick(a > b, a, b); }

/* The lanes in halves, always in the same order. */
PASS_INLINE float v_sum(vf v) {
    float x[VW];
    memcpy(x, &v, sizeof x);
    for (int half = VW / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
PASS_INLINE float v_highest(vf v) {
    float x[VW];
    memcpy(x, &v, sizeof x);
    for (int half = VW / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

/* exp to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), p of degree 4 fitted by least
 * squares of the relative error at Chebyshev nodes (4e-9). Zero below -87.3, capped at 88.3; NaN stays NaN. */
PASS_INLINE vf v_exp(vf x) {
    const vf magic = v_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vf y = v_pick(x > 88.3f, v_set(88.3f), x);
    vf n = v_fma(y, v_set(1.44269504088896341f), magic);
    vi exponent = (vi)n << 23;
    n = n - magic;
    vf r = v_fma(n, v_set(-0.693359375f), y); /* ln 2 in two parts, the first exact in 10 bits */
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.3751279329881072e-3f);
    p = v_fma(p, r, v_set(8.368952199816704e-3f));
    p = v_fma(p, r, v_set(4.1669540107250214e-2f));
    p = v_fma(p, r, v_set(1.66665181517601e-1f));
    p = v_fma(p, r, v_set(4.9999988079071045e-1f));
    p = v_fma(p, r * r, r) + 1.0f;
    p = (vf)((vi)p + exponent);
    p = v_pick(x < -87.3f, v_set(0.0f), p);
    return v_pick(x == x, p, x);
}

PASS_INLINE vf v_from_bf16(const uint16_t *p) {
#if VW == 16
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif VW == 8
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    vh_loose h = *(const vh_loose *)p;
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

PASS_INLINE float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Round to nearest, ties to even; NaN stays a (quiet) NaN. */
PASS_INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((bits >> 16) | 0x40) : (uint16_t)rounded;
}

#endif
