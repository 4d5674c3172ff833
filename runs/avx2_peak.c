/* How many multiply-adds of 4-bit weights with int8 can AVX2 do at best, on this machine?
 *
 *     gcc -O2 -mavx2 -fopenmp runs/avx2_peak.c -o /tmp/avx2_peak && /tmp/avx2_peak 2
 *
 * The inner loop of csrc/linear_int8.c without unpacking, scales, memory and ends of loops: two registers of 8 outputs x 4
 * weights each meet one broadcast x, and the products are summed in 16 bits. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    const int threads = count > 1 ? atoi(words[1]) : 1;
    const long rounds = 20000000;
    static const char x[64] __attribute__((aligned(64))) = {1};
    double best = 1e9;
    for (int repeat = 0; repeat < 7; repeat++) {
        const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
        for (long i = 0; i < rounds; i++)
            __asm__ volatile("vpbroadcastd (%0), %%ymm0\n"
                             "vpmaddubsw %%ymm0, %%ymm8, %%ymm1\n"
                             "vpmaddubsw %%ymm0, %%ymm9, %%ymm2\n"
                             "vpaddw %%ymm1, %%ymm3, %%ymm3\n"
                             "vpaddw %%ymm2, %%ymm4, %%ymm4\n"
                             "vpbroadcastd (%0), %%ymm0\n"
                             "vpmaddubsw %%ymm0, %%ymm8, %%ymm1\n"
                             "vpmaddubsw %%ymm0, %%ymm9, %%ymm2\n"
                             "vpaddw %%ymm1, %%ymm5, %%ymm5\n"
                             "vpaddw %%ymm2, %%ymm6, %%ymm6\n" ::"r"(x)
                             : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm8", "ymm9");
        const double seconds = omp_get_wtime() - start;
        if (seconds < best) best = seconds;
    }
    const double steps = 4.0 * threads * (double)rounds / best;
    printf("%d threads: %.2f billion steps of 32 products a second, %.0f GMAC/s\n", threads, steps / 1e9, 32 * steps / 1e9);
    return 0;
}
