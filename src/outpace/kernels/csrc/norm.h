/* The small row operations around the linears. Each works on one row (or a slice of it) and on nothing else. */
#ifndef OUTPACE_NORM_H
#define OUTPACE_NORM_H

#include <stdint.h>

/* 1 / sqrt(mean((x + y + bias)^2) + eps); y and bias may be NULL. Sums in lanes of a fixed order. */
float rms_factor(const float *x, const float *y, const float *bias, float eps, int64_t width);

/* x = x * rms_factor(x) * weight */
void norm_row(float *x, const float *weight, float eps, int64_t width);

/* Rotate the pairs (i, i + half) of a head by the angles whose cosines and sines are given (arXiv 2104.09864). */
void rotate_half(float *head, const float *cosine, const float *sine, int64_t half);

/* out = gate / (1 + exp(-gate)) * up (arXiv 2002.05202). */
void silu_multiply(const float *gate, const float *up, int64_t width, float *out);

/* x += y */
void add_row(float *x, const float *y, int64_t width);

/* Store float values in the cache's dtype. */
void store_row(const float *x, int64_t width, int bf16, void *out);

#endif
