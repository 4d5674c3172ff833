/* The row operations around the linears on exactly sized heap buffers, for the address and undefined-behaviour
 * sanitizers, at every width and offset, against sums in double: built and run by test_sanitize.py. Prints "ok". */
#include "norm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t state = 1;
static float value(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 1e-9f;
}

static float *filled(int64_t count) {
    float *x = malloc(sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) x[i] = value();
    return x;
}

/* A head of `width` at an odd place of a row: the norm of a copy that lies elsewhere must have the same bits. */
static int normed(int64_t width, int64_t offset) {
    float *row = filled(offset + width), *weight = filled(width), *copy = malloc(sizeof(float) * (size_t)width);
    float *head = row + offset;
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += (double)head[i] * head[i];
    double factor = 1 / sqrt(sum / (double)width + 1e-6);
    memcpy(copy, head, sizeof(float) * (size_t)width);
    int wrong = 0;
    norm_row(head, weight, 1e-6f, width);
    for (int64_t i = 0; i < width; i++) {
        double expected = copy[i] * factor * weight[i];
        wrong |= fabs(head[i] - expected) > 1e-6 + 1e-6 * fabs(expected);
    }
    norm_row(copy, weight, 1e-6f, width);
    wrong |= memcmp(copy, head, sizeof(float) * (size_t)width) != 0;
    free(row);
    free(weight);
    free(copy);
    return wrong;
}

/* The other operations: reads and writes stay inside. */
static void others(int64_t width) {
    float *x = filled(width), *y = filled(width), *bias = filled(width), *out = malloc(sizeof(float) * (size_t)width);
    uint16_t *narrow = malloc(2 * (size_t)width);
    out[0] = rms_factor(x, y, bias, 1e-6f, width) + rms_factor(x, y, NULL, 1e-6f, width);
    silu_multiply(x, y, width, out);
    add_row(x, y, width);
    rotate_half(x, y, bias, width / 2);
    store_row(x, width, 1, narrow);
    store_row(x, width, 0, out);
    free(x);
    free(y);
    free(bias);
    free(out);
    free(narrow);
}

int main(void) {
    for (int64_t width = 1; width <= 160; width++) {
        others(width);
        for (int64_t offset = 0; offset < 4; offset++) {
            if (!normed(width, offset)) continue;
            printf("a head of %d values at %d: wrong norm\n", (int)width, (int)offset);
            return 1;
        }
    }
    puts("ok");
    return 0;
}
