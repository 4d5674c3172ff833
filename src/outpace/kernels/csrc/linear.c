/* The linears' outer loops: outputs among threads, rows in chunks. */
#include "linear.h"
#include "linear_simd.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifndef OP_SOURCES /* build.py defines it */
#define OP_SOURCES 0
#endif

enum { FEWEST = 4 }; /* blocks that a thread takes at once: shorter runs cost more than they balance; chosen by hand */

static chunk_view chunk_of(const op_act *act, int first, int count) {
    chunk_view chunk = {0};
    chunk.rows = count;
    chunk.cols = act->cols;
    if (act->format == OP_ACT_INT8) {
        const int64_t at = first * act_groups(act->cols);
        chunk.q = (const int8_t *)act->values + 32 * at;
        chunk.scale = act->scale + at;
        chunk.scaled_sum = act->scaled_sum + at;
        chunk.offset8 = act->offset8 + at;
        chunk.offset6 = act->offset6 + 2 * at;
    } else {
        const int64_t cols = (act->cols + 1) / 2 * 2;
        chunk.values = (const float *)act->values + first * (act->format == OP_ACT_BF16 && OP_BF16_PAIRS ? cols / 2 : cols);
    }
    return chunk;
}

static void run_blocks(const op_matrix *w, int format, int count, const uint8_t *block, int64_t bytes,
                       const chunk_view *chunk) {
    if (format == OP_ACT_INT8)
        linear_int8_block(w->kind, block, chunk);
    else if (format == OP_ACT_BF16)
        linear_bf16_blocks(count, block, bytes, chunk);
    else
        linear_float_block(w->kind, block, chunk);
}

/* The next range of blocks for a thread: a share of what is left, an even number, and at least FEWEST where these are
 * enough for all threads. */
static int64_t take(int64_t *next, int64_t blocks, int nt, int64_t *end) {
    const int64_t fewest = blocks < FEWEST * nt ? (blocks + nt - 1) / nt : FEWEST;
    int64_t begin = __atomic_load_n(next, __ATOMIC_RELAXED), count;
    do {
        const int64_t left = blocks - begin;
        count = nt == 1 ? left : left / (2 * nt) / 2 * 2;
        if (count < fewest) count = left < fewest ? left : fewest;
        *end = begin + count;
    } while (count > 0 && !__atomic_compare_exchange_n(next, &begin, *end, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return begin;
}

void op_matmul(const op_matrix *w, const op_act *act, float *y, int64_t ldy, int64_t *next, int nt) {
    if (act->rows <= 0) return;
    const int64_t blocks = (w->rows + 15) / 16, bytes = block_bytes(w->kind, w->cols);
    const int chunks = chunk_count(act->format, act->rows);
    const int widest = chunk_start(act->rows, chunks, 1);
    const int at_once = act->format == OP_ACT_BF16 ? linear_bf16_blocks_at_once(widest) : 1;
    float edge[MAX_CHUNK * 32] __attribute__((aligned(64)));
    int64_t end, b;
    int count;
    while ((b = take(next, blocks, nt, &end)) < end)
        for (; b < end; b += count) {
            count = end - b < at_once ? (int)(end - b) : at_once;
            const int64_t left = w->rows - 16 * b;
            const int whole = left >= 16 * count;
            for (int c = 0; c < chunks; c++) {
                const int first = chunk_start(act->rows, chunks, c);
                const int rows = chunk_start(act->rows, chunks, c + 1) - first;
                chunk_view chunk = chunk_of(act, first, rows);
                float *out = y + first * ldy + 16 * b;
                chunk.y = whole ? out : edge;
                chunk.ldy = whole ? ldy : 32;
                chunk.cached = c > 0;
                run_blocks(w, act->format, count, w->data + b * bytes, bytes, &chunk);
                if (!whole)
                    for (int m = 0; m < rows; m++)
                        memcpy(out + m * ldy, edge + 32 * m, sizeof(float) * (size_t)left);
            }
        }
}

void op_linear(const op_matrix *w, int format, const float *x, int64_t ldx, int rows, float *y, int64_t ldy,
               void *scratch, int threads) {
    const op_act act = op_act_at(scratch, format, rows, w->cols);
    int64_t next = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
        const int tid = omp_get_thread_num(), nt = omp_get_num_threads();
        op_quantize_rows(&act, x, ldx, tid, nt);
#pragma omp barrier
        op_matmul(w, &act, y, ldy, &next, nt);
    }
#else
    (void)threads;
    op_quantize_rows(&act, x, ldx, 0, 1);
    op_matmul(w, &act, y, ldy, &next, 1);
#endif
}

#if defined(__x86_64__)
static int has_f16c(void) { /* clang's __builtin_cpu_supports does not know the name */
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

uint64_t op_sources(void) { return OP_SOURCES; }

int op_cpu_supports(int variant) {
    if (variant == 0) return 1;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (variant == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (variant == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#endif
    return 0;
}
