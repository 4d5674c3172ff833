/* Sampling at a vocabulary of 152 thousand in a fraction of a millisecond.
 *
 * The generator is Philox4x32-10 (Salmon et al., SC 2011); its counter is (token / 4, position, sample, tag) and
 * the word of lane token % 4 gives the uniform (word + 0.5) / 2^32. */
#include "sample.h"

#include <float.h>

#include "pass_vec.h"

typedef uint64_t quad __attribute__((vector_size(32))); /* four counters, a 32-bit word in the low half of each lane */
typedef uint32_t words8 __attribute__((vector_size(32)));
typedef int32_t ints8 __attribute__((vector_size(32)));
typedef float floats8 __attribute__((vector_size(32)));

enum { STRIDE = 16 }; /* tokens per step: four counters of four words */

static const uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u}, weyl[2] = {0x9E3779B9u, 0xBB67AE85u};

/* Product of the low halves. */
PASS_INLINE quad times(quad a, uint32_t b) {
#if defined(__AVX2__)
    return (quad)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return (a & 0xffffffffu) * (uint64_t)b;
#endif
}

/* The words of tokens first .. first + 15 (first a multiple of 4), in order. */
PASS_INLINE void philox16(noise_key key, uint64_t first, uint32_t out[STRIDE]) {
    quad a = {first / 4, first / 4 + 1, first / 4 + 2, first / 4 + 3};
    quad b = (quad){0} + key.position, c = (quad){0} + key.sample, d = (quad){0} + key.tag;
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        quad p = times(a, multiplier[0]), q = times(c, multiplier[1]);
        a = (q >> 32) ^ b ^ (uint64_t)k0;
        c = (p >> 32) ^ d ^ (uint64_t)k1;
        b = q, d = p; /* their high halves are junk that nobody reads */
        k0 += weyl[0], k1 += weyl[1];
    }
    quad low = (a & 0xffffffffu) | (b << 32), high = (c & 0xffffffffu) | (d << 32);
    uint64_t *to = (uint64_t *)__builtin_assume_aligned(out, 8);
    quad x = SHUFFLE4(low, high, 0, 4, 1, 5), y = SHUFFLE4(low, high, 2, 6, 3, 7);
    memcpy(to, &x, sizeof x);
    memcpy(to + 4, &y, sizeof y);
}

static double gumbel_of(uint32_t word) {
    double uniform = (word + 0.5) * 0x1p-32;
    return -log(-log(uniform));
}

void op_gumbel(noise_key key, const int64_t *ids, int64_t count, double *noise) {
    uint32_t words[STRIDE];
    for (int64_t i = 0; i < count; i++) {
        if (ids) {
            philox16(key, (uint64_t)ids[i] / 4 * 4, words);
            noise[i] = gumbel_of(words[ids[i] % 4]);
        } else {
            if (i % STRIDE == 0) philox16(key, (uint64_t)i, words);
            noise[i] = gumbel_of(words[i % STRIDE]);
        }
    }
}

int64_t op_argmax(const float *logits, int64_t count, float *greatest) {
    vf top[4];
    vi bad = {0};
    for (int j = 0; j < 4; j++) top[j] = v_set(-INFINITY);
    int64_t i = 0;
    for (; i + 4 * VW <= count; i += 4 * VW)
        for (int j = 0; j < 4; j++) {
            vf x = v_load(logits + i + j * VW);
            top[j] = v_max(x, top[j]);
            bad |= ~(x <= FLT_MAX); /* NaN and +inf */
        }
    float best = v_highest(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
    int wrong = 0;
    for (int j = 0; j < VW; j++) wrong |= bad[j];
    for (; i < count; i++) {
        wrong |= !(logits[i] <= FLT_MAX);
        best = logits[i] > best ? logits[i] : best;
    }
    *greatest = best;
    if (wrong || best == -INFINITY) return -1;
    for (i = 0; i + VW <= count; i += VW) {
        vi same = v_load(logits + i) == best;
        int any = 0;
        for (int j = 0; j < VW; j++) any |= same[j];
        if (any) break;
    }
    while (logits[i] != best) i++;
    return i;
}

int64_t op_softmax(const float *logits, int64_t count, float temperature, float *probs) {
    float best;
    if (op_argmax(logits, count, &best) < 0) return -1;
    vf sum = {0};
    double total = 0;
    int64_t i = 0;
    for (int lanes = 0; i < count; i += VW) {
        float tail[VW];
        int64_t left = count - i;
        vf x;
        if (left >= VW) {
            x = v_load(logits + i);
        } else {
            for (int j = 0; j < VW; j++) tail[j] = j < left ? logits[i + j] : -INFINITY;
            x = v_load(tail);
        }
        x = v_exp((x - best) / temperature);
        sum += x;
        if (++lanes == 256) total += v_sum(sum), sum = (vf){0}, lanes = 0; /* short float32 sums, a float64 total */
        if (left >= VW) {
            v_store(probs + i, x);
        } else {
            v_store(tail, x);
            memcpy(probs + i, tail, 4 * left);
        }
    }
    float inverse = (float)(1.0 / (total + v_sum(sum)));
    for (i = 0; i < count; i++) probs[i] *= inverse;
    return 0;
}

/* Lazy and exact. With v = 1 - uniform, gumbel <= -log v; and for a float v of exponent e and mantissa 1 + m,
 * log2 v = e + log2(1 + m) >= e + m, which is what the bits of v say when read as a number. The two logarithms are
 * taken only where this bound beats the best score so far. */
int64_t op_perturbed_argmax(const float *logits, int64_t count, double temperature, noise_key key) {
    const float inverse = (float)(1.0 / temperature);
    uint32_t words[STRIDE] __attribute__((aligned(32)));
    float tail[STRIDE];
    ints8 bad = {0};
    int64_t winner = -1;
    double best = -INFINITY;
    float bar = -INFINITY;
    for (int64_t i = 0; i < count; i += STRIDE) {
        const float *row = logits + i;
        if (count - i < STRIDE) {
            for (int j = 0; j < STRIDE; j++) tail[j] = i + j < count ? row[j] : -INFINITY;
            row = tail;
        }
        philox16(key, (uint64_t)i, words);
        ints8 hopeful[2];
        for (int half = 0; half < 2; half++) {
            words8 word;
            floats8 x;
            memcpy(&word, words + 8 * half, sizeof word);
            memcpy(&x, row + 8 * half, sizeof x);
            bad |= ~(x <= FLT_MAX);
            ints8 v = (ints8)(~word >> 8); /* v / 2^24, rounded down: the bound only grows */
            floats8 scaled = __builtin_convertvector(v, floats8);
            floats8 log2v = __builtin_convertvector((ints8)scaled, floats8) * 0x1p-23f;
            floats8 bound = (151.0f - log2v) * 0.6931472f + x * inverse;
            hopeful[half] = bound > bar;
        }
        ints8 either = hopeful[0] | hopeful[1];
#if defined(__AVX2__)
        if (_mm256_testz_si256((__m256i)either, (__m256i)either)) continue;
#else
        int any = 0;
        for (int j = 0; j < 8; j++) any |= either[j];
        if (!any) continue;
#endif
        for (int j = 0; j < STRIDE; j++) {
            if (!hopeful[j / 8][j % 8]) continue;
            double score = (double)row[j] / temperature + gumbel_of(words[j]);
            if (score > best) {
                best = score, winner = i + j;
                /* More than the float32 errors of the bound at any score that could still win. */
                bar = (float)(best - 1e-3 - 1e-6 * (fabs(best) + 40));
            }
        }
    }
    for (int j = 0; j < 8; j++)
        if (bad[j]) return -1;
    return winner;
}
