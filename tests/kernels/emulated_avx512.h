/* The AVX-512 instructions that the kernels use, made of AVX2 and of GCC's vectors, so that the avx512 kernels' own
 * code (16 outputs a register, pairs of bf16, blocks of every row count) runs on a machine without them. Included
 * before anything else. Not the machine's timing, and bf16 products are rounded like floats. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define __AVX512F__ 1
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
#define OP_NO_ASM 1

typedef float wide_float __attribute__((vector_size(64)));
typedef long long wide_bits __attribute__((vector_size(64)));
typedef short wide_pairs __attribute__((vector_size(64)));
typedef int wide_int __attribute__((vector_size(64)));
typedef unsigned wide_uint __attribute__((vector_size(64)));
typedef unsigned short wide_u16 __attribute__((vector_size(64)));
#define __m512 wide_float
#define __m512i wide_bits
#define __m512bh wide_pairs

#define WIDE static inline __attribute__((always_inline))
/* The two that the rest is about stay functions of their own: inlined everywhere, they take minutes to compile. */
#define WIDE_CALL static __attribute__((noinline, unused))

#define _mm512_setzero_ps() ((wide_float){0})
#define _mm512_setzero_si512() ((wide_bits){0})
#define _mm512_set1_ps(x) ((wide_float){0} + (float)(x))
#define _mm512_set1_epi32(x) ((wide_bits)((wide_int){0} + (int)(x)))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_srli_epi16(a, n) ((wide_bits)((wide_u16)(a) >> (unsigned short)(n)))
#define _mm512_slli_epi16(a, n) ((wide_bits)((wide_u16)(a) << (unsigned short)(n)))
#define _mm512_slli_epi32(a, n) ((wide_bits)((wide_uint)(a) << (n)))
#define _mm512_cvtepi32_ps(a) __builtin_convertvector((wide_int)(a), wide_float)

WIDE wide_float wide_loadu_ps(const void *p) {
    wide_float v;
    memcpy(&v, p, 64);
    return v;
}
WIDE wide_bits wide_loadu_si512(const void *p) {
    wide_bits v;
    memcpy(&v, p, 64);
    return v;
}
WIDE void wide_storeu_ps(void *p, wide_float v) { memcpy(p, &v, 64); }
WIDE wide_bits wide_set1_epi8(char x) {
    wide_bits v;
    memset(&v, x, 64);
    return v;
}

typedef union {
    wide_float f;
    wide_bits i;
    __m256 half_f[2];
    __m256i half_i[2];
    int32_t lane[16];
} wide;

WIDE wide_float wide_fmadd_ps(wide_float a, wide_float b, wide_float c) {
    wide x = {.f = a}, y = {.f = b}, z = {.f = c};
    for (int i = 0; i < 2; i++) z.half_f[i] = _mm256_fmadd_ps(x.half_f[i], y.half_f[i], z.half_f[i]);
    return z.f;
}
WIDE wide_float wide_fnmadd_ps(wide_float a, wide_float b, wide_float c) { return wide_fmadd_ps(-a, b, c); }
WIDE wide_float wide_cvtph_ps(__m256i h) {
    wide z;
    z.half_f[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
    z.half_f[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    return z.f;
}
#define WIDEN(name, from, type)                        \
    WIDE wide_bits name(from v) {                      \
        type x[16];                                    \
        wide z;                                        \
        memcpy(x, &v, sizeof x);                       \
        for (int i = 0; i < 16; i++) z.lane[i] = x[i]; \
        return z.i;                                    \
    }
WIDEN(wide_cvtepu8_epi32, __m128i, uint8_t)
WIDEN(wide_cvtepi8_epi32, __m128i, int8_t)
WIDEN(wide_cvtepu16_epi32, __m256i, uint16_t)

WIDE unsigned wide_test_epi32_mask(wide_bits a, wide_bits b) {
    wide z = {.i = a & b};
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(z.lane[i] != 0) << i;
    return mask;
}

/* Four unsigned bytes of a by four signed bytes of b, added to each lane. */
WIDE_CALL wide_bits wide_dpbusd_epi32(wide_bits sum, wide_bits a, wide_bits b) {
    wide x = {.i = a}, y = {.i = b}, z = {.i = sum};
    for (int i = 0; i < 2; i++) {
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x.half_i[i], _mm256_set1_epi16(255)),
                                               _mm256_srai_epi16(_mm256_slli_epi16(y.half_i[i], 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x.half_i[i], 8), _mm256_srai_epi16(y.half_i[i], 8));
        z.half_i[i] = _mm256_add_epi32(z.half_i[i], _mm256_add_epi32(even, odd));
    }
    return z.i;
}
/* Two bf16 of a by two of b, added to each lane, the upper ones first. */
WIDE_CALL wide_float wide_dpbf16_ps(wide_float sum, wide_pairs a, wide_pairs b) {
    const wide_uint upper = (wide_uint){0} + 0xffff0000u, x = (wide_uint)a, y = (wide_uint)b;
    sum += (wide_float)(x & upper) * (wide_float)(y & upper);
    return sum + (wide_float)(x << 16) * (wide_float)(y << 16);
}

/* The compiler has functions of these names, too. */
#define _mm512_loadu_ps wide_loadu_ps
#define _mm512_loadu_si512 wide_loadu_si512
#define _mm512_storeu_ps wide_storeu_ps
#define _mm512_set1_epi8 wide_set1_epi8
#define _mm512_fmadd_ps wide_fmadd_ps
#define _mm512_fnmadd_ps wide_fnmadd_ps
#define _mm512_cvtph_ps wide_cvtph_ps
#define _mm512_cvtepu8_epi32 wide_cvtepu8_epi32
#define _mm512_cvtepi8_epi32 wide_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 wide_cvtepu16_epi32
#define _mm512_test_epi32_mask wide_test_epi32_mask
#define _mm512_dpbusd_epi32 wide_dpbusd_epi32
#define _mm512_dpbf16_ps wide_dpbf16_ps
