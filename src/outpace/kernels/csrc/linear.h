/* Inside the linears: one block of 16 outputs times one chunk of rows. */
#ifndef OUTPACE_LINEAR_H
#define OUTPACE_LINEAR_H

#include "common.h"

/* One chunk of activations and where its outputs go: y[m * ldy + 0..15] for m < rows. */
typedef struct {
    int rows;
    int64_t cols;
    const int8_t *q;
    const float *values;
    const float *scale, *scaled_sum;
    const int32_t *offset8, *offset6;
    float *y;
    int64_t ldy;
    int cached; /* the block was just read for an earlier chunk: prefetching it is of no use */
} chunk_view;

void linear_int8_block(int kind, const uint8_t *block, const chunk_view *chunk);
/* `count` = 1 or 2 neighbouring blocks, block_bytes apart; outputs of the second follow those of the first. */
void linear_bf16_blocks(int count, const uint8_t *block, int64_t bytes, const chunk_view *chunk);
int linear_bf16_blocks_at_once(int rows);
/* Any kind with float activations. */
void linear_float_block(int kind, const uint8_t *block, const chunk_view *chunk);

/* tile[k - first][16]: the block's values at k = first .. first + count - 1, in the file's own arithmetic; first is a
 * multiple of 32. */
void unpack_tile(int kind, const uint8_t *block, int64_t cols, int64_t first, int count, float *tile);

#endif
