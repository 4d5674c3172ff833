/* Packing whole matrices, and their values back. */
#define _GNU_SOURCE
#include "pack.h"
#include "linear.h"

#include <stdlib.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

int64_t op_raw_row_bytes(int kind, int64_t cols) {
    if (block_bytes(kind, cols) < 0) return -1;
    switch (kind) {
    case OP_F32: return 4 * cols;
    case OP_F16:
    case OP_BF16: return 2 * cols;
    case OP_Q4_0: return cols / 32 * 18;
    case OP_Q4_1: return cols / 32 * 20;
    case OP_Q5_0: return cols / 32 * 22;
    case OP_Q5_1: return cols / 32 * 24;
    case OP_Q8_0: return cols / 32 * 34;
    case OP_Q4_K: return cols / 256 * 144;
    case OP_Q5_K: return cols / 256 * 176;
    default: return cols / 256 * 210;
    }
}

int64_t op_packed_bytes(int kind, int64_t rows, int64_t cols) {
    const int64_t bytes = block_bytes(kind, cols);
    return bytes < 0 || rows <= 0 ? -1 : (rows + 15) / 16 * bytes;
}

static void pack_row(int kind, const uint8_t *row, int64_t cols, uint8_t *block, int r) {
    if (kind == OP_F32) {
        for (int64_t k = 0; k < cols; k++) memcpy(block + 64 * k + 4 * r, row + 4 * k, 4);
    } else if (kind == OP_F16) {
        for (int64_t k = 0; k < cols; k++) memcpy(block + 32 * k + 2 * r, row + 2 * k, 2);
    } else if (kind == OP_BF16) {
        for (int64_t k = 0; k < cols; k++) memcpy(block + 64 * (k / 2) + 4 * r + 2 * (k & 1), row + 2 * k, 2);
    } else {
        weight_group group;
        for (int64_t g = 0; g < cols / 32; g++) {
            read_raw_group(kind, row, g, &group);
            write_packed_group(kind, block, r, g, &group);
        }
    }
}

int op_pack(int kind, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, uint8_t *packed, int threads) {
    const int64_t bytes = block_bytes(kind, cols);
    if (bytes < 0 || row_bytes < op_raw_row_bytes(kind, cols)) return -1;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t b = 0; b < (rows + 15) / 16; b++) {
        uint8_t *block = packed + b * bytes;
        memset(block, 0, (size_t)bytes);
        for (int r = 0; r < 16 && 16 * b + r < rows; r++) pack_row(kind, raw + (16 * b + r) * row_bytes, cols, block, r);
    }
    return 0;
}

static float source_value(int kind, const uint8_t *row, int64_t k) {
    if (kind == OP_F16) return half_to_float(load_u16(row + 2 * k));
    if (kind == OP_BF16) return bf16_to_float(load_u16(row + 2 * k));
    float x;
    memcpy(&x, row + 4 * k, 4);
    return x;
}

/* One row of floats as the target kind's raw row. */
static void convert_row(int kind, const float *values, int64_t cols, uint8_t *row) {
    if (kind == OP_F32) {
        memcpy(row, values, (size_t)cols * 4);
    } else if (kind == OP_F16) {
        for (int64_t k = 0; k < cols; k++) store_u16(row + 2 * k, float_to_half(values[k]));
    } else if (kind == OP_BF16) {
        for (int64_t k = 0; k < cols; k++) store_u16(row + 2 * k, float_to_bf16(values[k]));
    } else {
        quantize_raw_row(kind, values, cols, row);
    }
}

int op_pack_float(int kind, int source_kind, const uint8_t *source, int64_t row_bytes, int64_t rows, int64_t cols,
                  uint8_t *packed, int threads) {
    const int64_t bytes = block_bytes(kind, cols);
    const int float_kind = kind == OP_F32 || kind == OP_F16 || kind == OP_BF16;
    const int float_source = source_kind == OP_F32 || source_kind == OP_F16 || source_kind == OP_BF16;
    if (bytes < 0 || !float_source || (!float_kind && kind != OP_Q8_0 && kind != OP_Q4_0 && kind != OP_Q4_1)) return -1;
    if (row_bytes < op_raw_row_bytes(source_kind, cols)) return -1;
    int failed = 0;
    (void)threads;
#pragma omp parallel num_threads(threads)
    {
        float *values = malloc((size_t)cols * 4);
        uint8_t *row = malloc((size_t)op_raw_row_bytes(kind, cols));
        if (!values || !row) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < (rows + 15) / 16; b++) {
            uint8_t *block = packed + b * bytes;
            memset(block, 0, (size_t)bytes);
            if (!values || !row) continue;
            for (int r = 0; r < 16 && 16 * b + r < rows; r++) {
                const uint8_t *from = source + (16 * b + r) * row_bytes;
                for (int64_t k = 0; k < cols; k++) values[k] = source_value(source_kind, from, k);
                convert_row(kind, values, cols, row);
                pack_row(kind, row, cols, block, r);
            }
        }
        free(values);
        free(row);
    }
    return failed ? -1 : 0;
}

static float float_value(int kind, const uint8_t *block, int r, int64_t k) {
    if (kind == OP_F16) return half_to_float(load_u16(block + 32 * k + 2 * r));
    if (kind == OP_BF16) return bf16_to_float(load_u16(block + 64 * (k / 2) + 4 * r + 2 * (k & 1)));
    float x;
    memcpy(&x, block + 64 * k + 4 * r, 4);
    return x;
}

void unpack_tile(int kind, const uint8_t *block, int64_t cols, int64_t first, int count, float *tile) {
    (void)cols;
    for (int r = 0; r < 16; r++) {
        if (!layout_of(kind).groups_per_unit) {
            for (int k = 0; k < count; k++) tile[16 * k + r] = float_value(kind, block, r, first + k);
            continue;
        }
        weight_group group;
        float values[32];
        for (int k = 0; k < count; k += 32) {
            read_packed_group(kind, block, r, (first + k) / 32, &group);
            group_values(kind, &group, values);
            for (int i = 0; i < 32; i++) tile[16 * (k + i) + r] = values[i];
        }
    }
}

void op_unpack_rows(const op_matrix *w, int64_t first, int64_t count, float *out) {
    const int64_t bytes = block_bytes(w->kind, w->cols);
    for (int64_t n = first; n < first + count; n++, out += w->cols) {
        const uint8_t *block = w->data + n / 16 * bytes;
        const int r = (int)(n % 16);
        if (!layout_of(w->kind).groups_per_unit) {
            for (int64_t k = 0; k < w->cols; k++) out[k] = float_value(w->kind, block, r, k);
            continue;
        }
        weight_group group;
        for (int64_t g = 0; g < w->cols / 32; g++) {
            read_packed_group(w->kind, block, r, g, &group);
            group_values(w->kind, &group, out + 32 * g);
        }
    }
}

void op_dequantize_row(int kind, const uint8_t *raw, int64_t cols, float *out) {
    if (!layout_of(kind).groups_per_unit) {
        for (int64_t k = 0; k < cols; k++) out[k] = source_value(kind, raw, k);
        return;
    }
    weight_group group;
    for (int64_t g = 0; g < cols / 32; g++) {
        read_raw_group(kind, raw, g, &group);
        group_values(kind, &group, out + 32 * g);
    }
}

void op_dequantize_rows(int kind, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, float *out,
                        int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) op_dequantize_row(kind, raw + r * row_bytes, cols, out + r * cols);
}

/* Kernels prefetch a little beyond what they read; a prefetch never faults, so nothing is added for it. */
enum { HUGE_PAGE = 2 << 20 };

static size_t whole_pages(int64_t bytes) { return ((size_t)bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

void *op_alloc(int64_t bytes) {
    if (bytes <= 0) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) { /* map one page more than needed and give the ends back, to begin at a page's edge */
        const size_t size = whole_pages(bytes);
        char *mapped = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return NULL;
        const size_t skip = (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
        if (skip) munmap(mapped, skip);
        if (skip != HUGE_PAGE) munmap(mapped + skip + size, HUGE_PAGE - skip);
        madvise(mapped + skip, size, MADV_HUGEPAGE);
        return mapped + skip;
    }
#endif
    return aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
}

void op_free(void *memory, int64_t bytes) {
    if (!memory) return;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) {
        munmap(memory, whole_pages(bytes));
        return;
    }
#endif
    (void)bytes;
    free(memory);
}
