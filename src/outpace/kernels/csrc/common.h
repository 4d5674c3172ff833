/* The shared interface of the C kernels.
 *
 * The same sources are compiled once per instruction set into one library each (_kernels_plain, _kernels_avx2,
 * _kernels_avx512); every library exports the same names, and Python opens the best one the CPU can run. So a
 * kernel calls its neighbours directly, and nothing here is dispatched through pointers or kept in globals.
 *
 * Team functions take (tid, nt): every thread of one OpenMP team calls them with the same other arguments, each does
 * its own contiguous share, and none of them synchronises. Whoever opens the team puts a `#pragma omp barrier`
 * between a stage and the one that reads its output.
 *
 * Row invariance: a row's output bits depend on that row and the weights alone, never on the number of rows, their
 * order, the other rows' contents or the number of threads. Every (row, output) has one accumulation chain in
 * ascending k; build with -ffp-contract=off and without fast-math.
 */
#ifndef OUTPACE_COMMON_H
#define OUTPACE_COMMON_H

#include <stddef.h>
#include <stdint.h>

#define OP_API __attribute__((visibility("default")))
#define OP_INLINE static inline __attribute__((always_inline))

/* Weight kinds carry GGUF's own numbers. */
enum op_kind {
    OP_F32 = 0,
    OP_F16 = 1,
    OP_Q4_0 = 2,
    OP_Q4_1 = 3,
    OP_Q5_0 = 6,
    OP_Q5_1 = 7,
    OP_Q8_0 = 8,
    OP_Q4_K = 12,
    OP_Q5_K = 13,
    OP_Q6_K = 14,
    OP_BF16 = 30
};

/* How a matmul sees its activations. Integer kinds: INT8 (fast) or F32 (slow reference). BF16: BF16 (fast) or F32.
 * F16 and F32: F32 only. */
enum op_act_format { OP_ACT_F32 = 0, OP_ACT_BF16 = 1, OP_ACT_INT8 = 2 };

/* A packed matrix of `rows` outputs and `cols` inputs; `data` is 64-byte aligned. `act_format` is what op_matmul
 * expects; every matrix that shares an op_act must agree on it and on `cols`. */
typedef struct {
    int32_t kind;
    int32_t act_format;
    int64_t rows;
    int64_t cols;
    const uint8_t *data;
} op_matrix;

/* Activations in the form a matmul reads, inside scratch that the caller owns. A plain value: any thread may make its
 * own copy with op_act_at from the same arguments. */
typedef struct {
    int32_t format;
    int32_t rows;
    int64_t cols;
    void *values;      /* int8 groups, or the converted values                               */
    float *scale;      /* INT8: [group][row] scale                                           */
    float *scaled_sum; /* INT8: [group][row] scale * sum of the group's int8 values          */
    int32_t *offset8;  /* INT8: [group][row] -128 * sum; only AVX-512 reads it               */
    int32_t *offset6;  /* INT8: [group][row][2] -32 * sum of each half                       */
} op_act;

/* Bytes of scratch (to be 64-byte aligned) for activations of `rows` x `cols`. */
OP_API int64_t op_act_bytes(int format, int rows, int64_t cols);
OP_API op_act op_act_at(void *scratch, int format, int rows, int64_t cols);

/* Team function: fills `act` from x[rows][cols] (row stride ldx, in floats). Shares are split along k. */
OP_API void op_quantize_rows(const op_act *act, const float *x, int64_t ldx, int tid, int nt);

/* Team function: y[row * ldy + output] = sum_k w[output][k] * act[row][k], for all act->rows rows. The threads take
 * ranges of outputs from `next`, their own for this product and 0 before it, larger ones first: a thread that the
 * machine slows down takes fewer, and which thread computes an output changes no bit of it. */
OP_API void op_matmul(const op_matrix *w, const op_act *act, float *y, int64_t ldy, int64_t *next, int nt);

/* Not a team function: one whole linear, opening its own team. `scratch` holds op_act_bytes(format, rows, w->cols);
 * `format` overrides w->act_format. */
OP_API void op_linear(const op_matrix *w, int format, const float *x, int64_t ldx, int rows, float *y, int64_t ldy,
                      void *scratch, int threads);

/* Bytes of one row as the file holds it, and of a packed matrix; -1 when the kind is unknown or cols does not fit. */
OP_API int64_t op_raw_row_bytes(int kind, int64_t cols);
OP_API int64_t op_packed_bytes(int kind, int64_t rows, int64_t cols);

/* Not a team function: packs raw[rows] (row_bytes apart, as the file holds them) into `packed`. Returns 0, or
 * -1 when the kind is unknown or cols does not fit. */
OP_API int op_pack(int kind, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, uint8_t *packed,
                   int threads);
/* As op_pack, quantizing at load from float rows: source_kind F32, F16 or BF16; kind Q8_0, Q4_0, Q4_1 or any of the three. */
OP_API int op_pack_float(int kind, int source_kind, const uint8_t *source, int64_t row_bytes, int64_t rows, int64_t cols,
                         uint8_t *packed, int threads);
/* The packed matrix' own values, rows [first, first + count) as float32 out[count][cols]. */
OP_API void op_unpack_rows(const op_matrix *w, int64_t first, int64_t count, float *out);
/* One raw row as float32 (an embedding look-up straight from the mapped file). */
OP_API void op_dequantize_row(int kind, const uint8_t *raw, int64_t cols, float *out);
/* Not a team function: raw rows, row_bytes apart, as float32 out[rows][cols]. */
OP_API void op_dequantize_rows(int kind, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, float *out,
                               int threads);

/* Memory for packed weights: 64-byte aligned, advised to use huge pages. NULL when there is none. */
OP_API void *op_alloc(int64_t bytes);
OP_API void op_free(void *memory, int64_t bytes);

/* Which sources the library was built from: Python opens it only if they are the package's own (build.py). */
OP_API uint64_t op_sources(void);

/* Whether this CPU and system run a variant: 0 plain, 1 avx2, 2 avx512. */
OP_API int op_cpu_supports(int variant);

#endif
