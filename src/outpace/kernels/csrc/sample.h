/* Choosing tokens from rows of logits. No function keeps state; a row's result depends on that row alone. */
#ifndef OUTPACE_SAMPLE_H
#define OUTPACE_SAMPLE_H

#include "common.h"

/* What names a row's noise: Philox key (seed) and the last three words of its counter. */
typedef struct {
    uint64_t seed;
    uint32_t position, sample, tag;
    uint32_t unused;
} noise_key;

/* Index of the greatest logit, the lowest among equals; -1 when one is NaN or +inf, or all are -inf. */
OP_API int64_t op_argmax(const float *logits, int64_t count, float *greatest);

/* probs = softmax(logits / temperature) in float32. Returns 0, or -1 when there is no such distribution (see above). */
OP_API int64_t op_softmax(const float *logits, int64_t count, float temperature, float *probs);

/* Standard Gumbel noise of token ids (NULL: 0 .. count - 1), float64. */
OP_API void op_gumbel(noise_key key, const int64_t *ids, int64_t count, double *noise);

/* argmax over i of logits[i] / temperature + gumbel(i) in float64, the lowest among equals; -1 as above. */
OP_API int64_t op_perturbed_argmax(const float *logits, int64_t count, double temperature, noise_key key);

#endif
