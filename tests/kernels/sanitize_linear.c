/* Every kind, packed and multiplied with exactly sized heap buffers, for the address and undefined-behaviour sanitizers:
 * built and run by test_sanitize.py together with csrc/. Prints "ok". */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int kinds[] = {OP_F32,  OP_F16,  OP_BF16, OP_Q4_0, OP_Q4_1, OP_Q5_0,
                            OP_Q5_1, OP_Q8_0, OP_Q4_K, OP_Q5_K, OP_Q6_K};

static uint32_t state = 1;
static uint32_t next(void) { return state = state * 1664525u + 1013904223u; }

static void *sized(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) abort();
    return p;
}

static int matrix(int kind, int format, int rows, int cols, int outputs, int threads) {
    const int64_t row_bytes = op_raw_row_bytes(kind, cols);
    uint8_t *raw = malloc((size_t)(row_bytes * outputs));
    for (int64_t i = 0; i < row_bytes * outputs; i++) raw[i] = (uint8_t)(next() >> 24);
    const int64_t bytes = op_packed_bytes(kind, outputs, cols);
    uint8_t *packed = op_alloc(bytes);
    if (!packed || op_pack(kind, raw, row_bytes, outputs, cols, packed, threads)) return 1;
    const op_matrix w = {kind, format, outputs, cols, packed};
    float *values = malloc(sizeof(float) * (size_t)(outputs * cols)), *row = malloc(sizeof(float) * (size_t)cols);
    op_unpack_rows(&w, 0, outputs, values);
    for (int n = 0; n < outputs; n++) {
        op_dequantize_row(kind, raw + n * row_bytes, cols, row);
        if (memcmp(row, values + (int64_t)n * cols, sizeof(float) * (size_t)cols)) return 2;
    }
    float *x = malloc(sizeof(float) * (size_t)(rows * cols)), *y = malloc(sizeof(float) * (size_t)(rows * outputs));
    for (int i = 0; i < rows * cols; i++) x[i] = (float)(int32_t)next() * 1e-9f;
    void *scratch = sized((size_t)op_act_bytes(format, rows, cols));
    op_linear(&w, format, x, cols, rows, y, outputs, scratch, threads);
    if (kind == OP_F32 || kind == OP_BF16) {
        uint8_t *again = op_alloc(op_packed_bytes(OP_Q8_0, outputs, 32));
        if (op_pack_float(OP_Q8_0, kind, raw, row_bytes, outputs, 32, again, threads)) return 3;
        op_free(again, op_packed_bytes(OP_Q8_0, outputs, 32));
    }
    op_free(packed, bytes);
    free(raw);
    free(values);
    free(row);
    free(x);
    free(y);
    free(scratch);
    return 0;
}

int main(void) {
    const int rows[] = {1, 2, 5, 13};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const int kind = kinds[k], k_quant = kind == OP_Q4_K || kind == OP_Q5_K || kind == OP_Q6_K;
        const int floats = kind == OP_F32 || kind == OP_F16 || kind == OP_BF16;
        const int cols = k_quant ? 256 : floats ? 77 : 96;
        const int fast = kind == OP_BF16 ? OP_ACT_BF16 : floats ? OP_ACT_F32 : OP_ACT_INT8;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            for (int threads = 1; threads <= 2; threads++) {
                int code = matrix(kind, fast, rows[r], cols, 21, threads);
                if (!code && fast != OP_ACT_F32) code = matrix(kind, OP_ACT_F32, rows[r], cols, 21, threads);
                if (code) {
                    printf("kind %d, %d rows, %d threads: failure %d\n", kind, rows[r], threads, code);
                    return 1;
                }
            }
        }
    }
    puts("ok");
    return 0;
}
