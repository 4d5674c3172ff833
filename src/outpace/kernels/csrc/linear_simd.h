/* The few vector operations that the linear kernels are written in, once per instruction set.
 *
 * VL outputs live in one register, each with four consecutive k (int8) or two (bf16) of its row: a step needs no
 * horizontal sum. AVX-512 holds the 16 outputs of a block in one register, AVX2 and plain C hold 8. */
#ifndef OUTPACE_LINEAR_SIMD_H
#define OUTPACE_LINEAR_SIMD_H

#include "common.h"
#include "pack_layout.h"

#include <string.h>

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include <immintrin.h>
#define OP_AVX512 1
#define VL 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define OP_AVX2 1
#define VL 8
#else
#define VL 8
#endif

#define HALVES (16 / VL)
#ifndef UNROLL /* builds with sanitizers, which take minutes otherwise, define it as nothing */
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* Loops over rows whose count may not be a constant. */
#if defined(OP_AVX512)
#define UNROLL_ROWS UNROLL
#else
#define UNROLL_ROWS
#endif

#if defined(OP_AVX512)

typedef __m512 fvec;
typedef __m512i ivec;
typedef __m512i bvec;

OP_INLINE fvec f_zero(void) { return _mm512_setzero_ps(); }
OP_INLINE fvec f_set(float x) { return _mm512_set1_ps(x); }
OP_INLINE fvec f_load(const float *p) { return _mm512_loadu_ps(p); }
OP_INLINE void f_store(float *p, fvec v) { _mm512_storeu_ps(p, v); }
OP_INLINE fvec f_mul(fvec a, fvec b) { return _mm512_mul_ps(a, b); }
OP_INLINE fvec f_fma(fvec a, fvec b, fvec c) { return _mm512_fmadd_ps(a, b, c); }
OP_INLINE fvec f_fnma(fvec a, fvec b, fvec c) { return _mm512_fnmadd_ps(a, b, c); }
OP_INLINE fvec f_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
OP_INLINE fvec f_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
OP_INLINE fvec f_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
OP_INLINE fvec f_int(ivec v) { return _mm512_cvtepi32_ps(v); }
OP_INLINE ivec i_zero(void) { return _mm512_setzero_si512(); }
OP_INLINE ivec i_set(int32_t x) { return _mm512_set1_epi32(x); }
OP_INLINE bvec b_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
OP_INLINE bvec b_and(bvec v, int byte) { return _mm512_and_si512(v, _mm512_set1_epi8((char)byte)); }
OP_INLINE bvec b_or(bvec a, bvec b) { return _mm512_or_si512(a, b); }
OP_INLINE bvec b_shr(bvec v, int n) { return _mm512_srli_epi16(v, (unsigned)n); }
OP_INLINE bvec b_shl(bvec v, int n) { return _mm512_slli_epi16(v, (unsigned)n); }

/* acc += w . x with the four int8 of *x for every output. In assembly because GCC 12 spills around the intrinsic
 * and does not fold the broadcast into it. */
OP_INLINE ivec i_step(ivec acc, bvec w, const int32_t *x) {
#ifdef OP_NO_ASM
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(*x));
#else
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*x));
    return acc;
#endif
}

/* init + the dot products of n = 4 or 8 weight registers (4 k each, unsigned) with x[n]. */
OP_INLINE ivec i_dot(const int bits, const int n, const bvec *w, const int32_t *x, ivec init) {
    (void)bits;
    UNROLL for (int i = 0; i < n; i++) init = i_step(init, w[i], x + i);
    return init;
}

#elif defined(OP_AVX2)

typedef __m256 fvec;
typedef __m256i ivec;
typedef __m256i bvec;

OP_INLINE fvec f_zero(void) { return _mm256_setzero_ps(); }
OP_INLINE fvec f_set(float x) { return _mm256_set1_ps(x); }
OP_INLINE fvec f_load(const float *p) { return _mm256_loadu_ps(p); }
OP_INLINE void f_store(float *p, fvec v) { _mm256_storeu_ps(p, v); }
OP_INLINE fvec f_mul(fvec a, fvec b) { return _mm256_mul_ps(a, b); }
OP_INLINE fvec f_fma(fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); }
OP_INLINE fvec f_fnma(fvec a, fvec b, fvec c) { return _mm256_fnmadd_ps(a, b, c); }
OP_INLINE fvec f_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
OP_INLINE fvec f_u8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
OP_INLINE fvec f_i8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
OP_INLINE fvec f_int(ivec v) { return _mm256_cvtepi32_ps(v); }
OP_INLINE ivec i_zero(void) { return _mm256_setzero_si256(); }
OP_INLINE ivec i_set(int32_t x) { return _mm256_set1_epi32(x); }
OP_INLINE bvec b_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
OP_INLINE bvec b_and(bvec v, int byte) { return _mm256_and_si256(v, _mm256_set1_epi8((char)byte)); }
OP_INLINE bvec b_or(bvec a, bvec b) { return _mm256_or_si256(a, b); }
OP_INLINE bvec b_shr(bvec v, int n) { return _mm256_srli_epi16(v, n); }
OP_INLINE bvec b_shl(bvec v, int n) { return _mm256_slli_epi16(v, n); }

OP_INLINE ivec i_add(ivec a, ivec b) { return _mm256_add_epi32(a, b); }
OP_INLINE ivec i_widen(ivec v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/* One register of both halves' outputs with the four int8 of *x: to[h] = (add ? to[h] : 0) + w[h] . x, summed in 16 bits.
 * In assembly, sums included, as the next one: GCC 12 broadcasts all of x first and spills the weights. */
#define PAIR_OF(a, b)                            \
    "vpbroadcastd %[x], %[" a "]\n\t"            \
    "vpmaddubsw %[" a "], %[w1], %[" b "]\n\t"   \
    "vpmaddubsw %[" a "], %[w0], %[" a "]\n\t"
OP_INLINE void i_pair(const int add, const bvec w0, const bvec w1, const int32_t *x, ivec *to) {
#ifdef OP_NO_ASM
    const __m256i value = _mm256_set1_epi32(*x), zero = i_zero();
    to[0] = _mm256_add_epi16(add ? to[0] : zero, _mm256_maddubs_epi16(w0, value));
    to[1] = _mm256_add_epi16(add ? to[1] : zero, _mm256_maddubs_epi16(w1, value));
#else
    ivec t, u;
    if (add)
        __asm__(PAIR_OF("t", "u") "vpaddw %[u], %[b], %[b]\n\t"
                                  "vpaddw %[t], %[a], %[a]"
                : [a] "+x"(to[0]), [b] "+x"(to[1]), [t] "=&x"(t), [u] "=&x"(u)
                : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*x));
    else
        __asm__(PAIR_OF("a", "b") : [a] "=&x"(to[0]), [b] "=&x"(to[1]) : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*x));
#endif
}

/* The same for signed 8-bit weights, in 32 bits: `size0` and `size1` are their sizes, and their signs, taken from where
 * they lie (64 bytes: 8 outputs, then the other 8), move to x. A product fits (2 * 128 * 127 = 32512), no sum does. */
#define BYTES_OF(a, b)                           \
    "vpbroadcastd %[x], %[" a "]\n\t"            \
    "vpsignb %[w1], %[" a "], %[" b "]\n\t"      \
    "vpsignb %[w0], %[" a "], %[" a "]\n\t"      \
    "vpmaddubsw %[" b "], %[s1], %[" b "]\n\t"   \
    "vpmaddubsw %[" a "], %[s0], %[" a "]\n\t"   \
    "vpmaddwd %[" b "], %[ones], %[" b "]\n\t"   \
    "vpmaddwd %[" a "], %[ones], %[" a "]\n\t"
OP_INLINE void i_byte_pair(const int add, const bvec size0, const bvec size1, const uint8_t *bytes, const int32_t *x,
                           ivec *to) {
    const __m256i ones = _mm256_set1_epi16(1);
#ifdef OP_NO_ASM
    const __m256i value = _mm256_set1_epi32(*x), x0 = _mm256_sign_epi8(value, b_load(bytes)),
                  x1 = _mm256_sign_epi8(value, b_load(bytes + 32));
    to[0] = i_add(add ? to[0] : i_zero(), _mm256_madd_epi16(_mm256_maddubs_epi16(size0, x0), ones));
    to[1] = i_add(add ? to[1] : i_zero(), _mm256_madd_epi16(_mm256_maddubs_epi16(size1, x1), ones));
#else
    ivec t, u;
    const __m256i_u *w = (const __m256i_u *)bytes;
    if (add)
        __asm__(BYTES_OF("t", "u") "vpaddd %[u], %[b], %[b]\n\t"
                                   "vpaddd %[t], %[a], %[a]"
                : [a] "+x"(to[0]), [b] "+x"(to[1]), [t] "=&x"(t), [u] "=&x"(u)
                : [s0] "x"(size0), [s1] "x"(size1), [w0] "m"(w[0]), [w1] "m"(w[1]), [x] "m"(*x), [ones] "x"(ones));
    else
        __asm__(BYTES_OF("a", "b")
                : [a] "=&x"(to[0]), [b] "=&x"(to[1])
                : [s0] "x"(size0), [s1] "x"(size1), [w0] "m"(w[0]), [w1] "m"(w[1]), [x] "m"(*x), [ones] "x"(ones));
#endif
}

/* Half a group: to[h] = 4 registers of weights of both halves' outputs with x[4]; i_join adds up two halves of a group.
 * As many products of `bits`-bit weights are summed in 16 bits as fit without saturation, then widened: of 4 bits those
 * of the whole group (2 * 15 * 127 * 8 = 30480), of 5 four (2 * 31 * 127 * 4 = 31496), of 6 two (2 * 63 * 127 * 2 =
 * 32004). `bytes`: where 8-bit weights lie. */
OP_INLINE void i_half(const int bits, bvec w[HALVES][4], const uint8_t *bytes, const int32_t *x, ivec *to) {
    if (bits == 8) {
        UNROLL for (int i = 0; i < 4; i++) i_byte_pair(i > 0, w[0][i], w[1][i], bytes + 64 * i, x + i, to);
        return;
    }
    const int fit = bits == 6 ? 2 : 4;
    UNROLL for (int i = 0; i < fit; i++) i_pair(i > 0, w[0][i], w[1][i], x + i, to);
    if (bits > 4) UNROLL for (int h = 0; h < HALVES; h++) to[h] = i_widen(to[h]);
    if (bits == 6) {
        ivec more[HALVES];
        UNROLL for (int i = fit; i < 4; i++) i_pair(i > fit, w[0][i], w[1][i], x + i, more);
        UNROLL for (int h = 0; h < HALVES; h++) to[h] = i_add(to[h], i_widen(more[h]));
    }
}
OP_INLINE ivec i_join(const int bits, ivec a, ivec b) {
    return bits == 4 ? i_widen(_mm256_add_epi16(a, b)) : i_add(a, b);
}

#else

typedef struct { float v[VL]; } fvec;
typedef struct { int32_t v[VL]; } ivec;
typedef struct { uint8_t v[4 * VL]; } bvec;

#define LANES(expression)                          \
    do {                                           \
        for (int l = 0; l < VL; l++) r.v[l] = (expression); \
    } while (0)

OP_INLINE fvec f_set(float x) { fvec r; LANES(x); return r; }
OP_INLINE fvec f_zero(void) { return f_set(0.0f); }
OP_INLINE fvec f_load(const float *p) { fvec r; memcpy(r.v, p, sizeof r.v); return r; }
OP_INLINE void f_store(float *p, fvec v) { memcpy(p, v.v, sizeof v.v); }
OP_INLINE fvec f_mul(fvec a, fvec b) { fvec r; LANES(a.v[l] * b.v[l]); return r; }
/* Two roundings: fmaf without the instruction is a slow call, and each variant only has to agree with itself. */
OP_INLINE fvec f_fma(fvec a, fvec b, fvec c) { fvec r; LANES(a.v[l] * b.v[l] + c.v[l]); return r; }
OP_INLINE fvec f_fnma(fvec a, fvec b, fvec c) { fvec r; LANES(c.v[l] - a.v[l] * b.v[l]); return r; }
OP_INLINE fvec f_half(const uint8_t *p) { fvec r; LANES(half_to_float(load_u16(p + 2 * l))); return r; }
OP_INLINE fvec f_u8(const uint8_t *p) { fvec r; LANES((float)p[l]); return r; }
OP_INLINE fvec f_i8(const uint8_t *p) { fvec r; LANES((float)(int8_t)p[l]); return r; }
OP_INLINE fvec f_int(ivec v) { fvec r; LANES((float)v.v[l]); return r; }
OP_INLINE ivec i_set(int32_t x) { ivec r; LANES(x); return r; }
OP_INLINE ivec i_zero(void) { return i_set(0); }

#define BYTES(expression)                              \
    do {                                               \
        for (int l = 0; l < 4 * VL; l++) r.v[l] = (uint8_t)(expression); \
    } while (0)
OP_INLINE bvec b_load(const uint8_t *p) { bvec r; memcpy(r.v, p, sizeof r.v); return r; }
OP_INLINE bvec b_and(bvec v, int byte) { bvec r; BYTES(v.v[l] & byte); return r; }
OP_INLINE bvec b_or(bvec a, bvec b) { bvec r; BYTES(a.v[l] | b.v[l]); return r; }
/* Bits that cross a byte in the 16-bit shifts of the other variants are masked off by every caller. */
OP_INLINE bvec b_shr(bvec v, int n) { bvec r; BYTES(v.v[l] >> n); return r; }
OP_INLINE bvec b_shl(bvec v, int n) { bvec r; BYTES(v.v[l] << n); return r; }

OP_INLINE ivec i_add(ivec a, ivec b) { ivec r; LANES(a.v[l] + b.v[l]); return r; }
OP_INLINE void i_half(const int bits, bvec w[HALVES][4], const uint8_t *bytes, const int32_t *x, ivec *to) {
    (void)bytes;
    for (int h = 0; h < HALVES; h++) {
        to[h] = i_set(0);
        for (int i = 0; i < 4; i++) {
            int8_t q[4];
            memcpy(q, x + i, 4);
            for (int l = 0; l < VL; l++)
                for (int j = 0; j < 4; j++) {
                    const uint8_t byte = w[h][i].v[4 * l + j];
                    to[h].v[l] += (bits == 8 ? (int8_t)byte : byte) * q[j];
                }
        }
    }
}
OP_INLINE ivec i_join(const int bits, ivec a, ivec b) {
    (void)bits;
    return i_add(a, b);
}

#endif

/* 8-bit weights are stored plus 128 for AVX-512, which starts from -128 * sum(x), and signed elsewhere. A register of them
 * as i_dot or i_half wants it: as stored; for AVX2 their sizes, without the signs. */
#if defined(OP_AVX512)
#define OP_BYTE_FLIP 0
#else
#define OP_BYTE_FLIP 0x80
#endif
#if defined(OP_AVX2)
OP_INLINE bvec b_byte(const uint8_t *p) { return _mm256_abs_epi8(b_load(p)); }
#else
OP_INLINE bvec b_byte(const uint8_t *p) { return b_load(p); }
#endif

/* bf16 activations: pairs of bf16 where the machine multiplies them, their float values elsewhere. */
#if defined(OP_AVX512)
#define OP_BF16_PAIRS 1
#else
#define OP_BF16_PAIRS 0
#endif

/* Prefetch distance of the weights in bytes. AVX2's were measured on two cores of an EPYC (Zen 3;
 * docs/log.md, 2026-11-30); AVX-512's are a guess, since no machine with it was at hand. For integer weights AVX-512 also prefetches a second, farther address. */
#if defined(OP_AVX512)
#define OP_FAR_PREFETCH 1
OP_INLINE int64_t near_bytes(int rows) { return rows <= 4 ? 2048 : 1024; }
#else
#define OP_FAR_PREFETCH 0
OP_INLINE int64_t near_bytes(int rows) { return rows == 1 ? 1280 : 3072; }
#endif
OP_INLINE void prefetch_near(const uint8_t *p) { __builtin_prefetch(p, 0, 3); }
OP_INLINE void prefetch_far(const uint8_t *p) { __builtin_prefetch(p, 0, 2); }

/* How many rows of activations one pass over a block of weights holds: as many as its accumulators have room for. */
OP_INLINE int chunk_limit(int format) {
#if defined(OP_AVX512)
    (void)format;
    return 12;
#else
    return format == OP_ACT_INT8 ? 12 : 6;
#endif
}
#define MAX_CHUNK 12

OP_INLINE int chunk_count(int format, int rows) {
    const int limit = chunk_limit(format);
    return (rows + limit - 1) / limit;
}
/* Chunk c of n begins here; chunk n begins at `rows`. The first ones are one longer where it does not come out even. */
OP_INLINE int chunk_start(int rows, int n, int c) {
    const int base = rows / n, rest = rows % n;
    return c * base + (c < rest ? c : rest);
}

#endif
