/* How many multiply-adds of 4-bit and of 8-bit weights with int8 can AVX2 do at best, on this machine?
 *
 *     C=src/outpace/kernels/csrc; gcc -O3 -mavx2 -mfma -mf16c -fopenmp -I$C runs/avx2_peak.c -o /tmp/avx2_peak && /tmp/avx2_peak 2
 *
 * The inner steps of csrc/linear_int8.c, as they stand in linear_simd.h, for eight rows at a time, without unpacking, scales
 * and memory: registers of weights that stay meet broadcasts of x, and the sums go to the first cache. These are joined for
 * each half of a group where the kernel does it once, so that it is a little less than the best. */
#include "linear_simd.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 8 };

OP_INLINE void half_group(const int bits, bvec w[HALVES][4], const uint8_t *bytes, const int32_t *x, ivec sums[ROWS][HALVES]) {
    UNROLL for (int m = 0; m < ROWS; m++) {
        ivec sum[HALVES];
        i_half(bits, w, bytes, x + 4 * m, sum);
        UNROLL for (int h = 0; h < HALVES; h++) sums[m][h] = i_join(bits, sums[m][h], sum[h]);
    }
}

static double gmacs(const int bits, int threads) {
    const long rounds = 2000000;
    double best = 1e9;
    for (int repeat = 0; repeat < 9; repeat++) {
        const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
        {
            uint8_t bytes[256] __attribute__((aligned(64))) = {1};
            int32_t x[4 * ROWS] = {1};
            bvec w[HALVES][4];
            ivec sums[ROWS][HALVES];
            memset(sums, 0, sizeof sums);
            __asm__ volatile("" : "+m"(bytes));
            for (int h = 0; h < HALVES; h++)
                for (int i = 0; i < 4; i++) w[h][i] = b_and(b_load(bytes + 64 * i + 32 * h), 15);
            for (long i = 0; i < rounds; i++) {
                if (bits == 8)
                    half_group(8, w, bytes, x, sums);
                else
                    half_group(4, w, bytes, x, sums);
                __asm__ volatile("" : "+m"(sums), "+m"(x), "+m"(bytes));
            }
        }
        const double seconds = omp_get_wtime() - start;
        if (seconds < best) best = seconds;
    }
    return 16.0 * 16 * ROWS * rounds * threads / best / 1e9;
}

int main(int count, char **words) {
    const int threads = count > 1 ? atoi(words[1]) : 1;
    printf("%d threads: %.0f GMAC/s of 4-bit weights, %.0f of 8-bit ones\n", threads, gmacs(4, threads), gmacs(8, threads));
    return 0;
}
