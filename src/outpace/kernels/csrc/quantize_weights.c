/* Rounding float weights to GGUF's Q8_0, Q4_0 and Q4_1 at load (groups of 32). */
#include "pack.h"

#include <math.h>

/* 32 levels, cut to 0 .. 15, in 16 bytes: those of the second half are the upper four bits. */
static void store_levels(uint8_t *out, const float *level) {
    uint8_t q[32];
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(level[i] > 15.0f ? 15.0f : level[i] < 0.0f ? 0.0f : level[i]);
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

void quantize_raw_row(int kind, const float *values, int64_t count, uint8_t *row) {
    for (int64_t g = 0; g < count / 32; g++) {
        const float *x = values + 32 * g;
        float least = x[0], most = x[0];
        int finite = 1;
        for (int i = 0; i < 32; i++) {
            finite = finite && fabsf(x[i]) < INFINITY;
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        if (kind == OP_Q8_0) { /* symmetric: scale = max|w| / 127 */
            uint8_t *out = row + 34 * g;
            const float size = -least > most ? -least : most;
            const uint16_t half = finite ? float_to_half(size / 127.0f) : 0x7e00;
            const float d = half_to_float(half);
            store_u16(out, half);
            for (int i = 0; i < 32; i++) {
                const float q = finite && d > 0.0f ? rintf(x[i] / d) : 0.0f;
                out[2 + i] = (uint8_t)(int8_t)(q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q);
            }
        } else if (kind == OP_Q4_0) { /* 16 even steps around 0, the value that is furthest from it at level 0 */
            uint8_t *out = row + 18 * g;
            const uint16_t half = finite ? float_to_half((-least > most ? least : most) / -8.0f) : 0x7e00;
            const float d = half_to_float(half);
            float level[32];
            store_u16(out, half);
            for (int i = 0; i < 32; i++) level[i] = finite && d != 0.0f ? rintf(x[i] / d) + 8.0f : 8.0f;
            store_levels(out + 2, level);
        } else { /* Q4_1: 16 even steps from the smallest to the largest */
            uint8_t *out = row + 20 * g;
            const uint16_t half = finite ? float_to_half((most - least) / 15.0f) : 0x7e00;
            const uint16_t low = finite ? float_to_half(least) : 0x7e00;
            const float d = half_to_float(half), m = half_to_float(low);
            float level[32];
            store_u16(out, half);
            store_u16(out + 2, low);
            for (int i = 0; i < 32; i++) level[i] = finite && d > 0.0f ? rintf((x[i] - m) / d) : 0.0f;
            store_levels(out + 4, level);
        }
    }
}
