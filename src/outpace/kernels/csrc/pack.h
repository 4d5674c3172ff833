/* One group of 32 weights between the file's layout, the packed layout and float values. */
#ifndef OUTPACE_PACK_H
#define OUTPACE_PACK_H

#include "common.h"
#include "pack_layout.h"

/* 32 weights of one row: unsigned values (Q4_0 + 8, Q5_0 + 16, Q6_K + 32, Q8_0 + 128) and their scales, as stored. */
typedef struct {
    uint8_t q[32];
    uint16_t d, m;      /* fp16: scale, and minimum (the K kinds' dmin) */
    uint8_t scale, low; /* Q4_K, Q5_K: 6-bit scale and minimum; Q6_K: the int8 scales of both halves */
} weight_group;

/* Group g of a row as GGUF stores it. */
void read_raw_group(int kind, const uint8_t *row, int64_t g, weight_group *out);
/* Group g of output r (0..15) of a packed block. */
void read_packed_group(int kind, const uint8_t *block, int r, int64_t g, weight_group *out);
void write_packed_group(int kind, uint8_t *block, int r, int64_t g, const weight_group *group);
/* The float32 values, with the operations and roundings of GGUF's reference code. */
void group_values(int kind, const weight_group *group, float *out);

/* float values to GGUF rows of Q8_0 or Q4_1 (quantize_weights.c); count is a multiple of 32. */
void quantize_raw_row(int kind, const float *values, int64_t count, uint8_t *row);

#endif
