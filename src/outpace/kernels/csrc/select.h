/* Which tokens of a row are kept, and which of them a number draws. Comparisons decide, and sums run in one fixed
 * order, so that a row's result depends on that row alone and is the same on every machine. Ids come out ascending;
 * among equal values the lower id goes first. Values are not NaN, ids fit 32 bits, `scratch` belongs to the caller. */
#ifndef OUTPACE_SELECT_H
#define OUTPACE_SELECT_H

#include "common.h"

/* Ids of the values >= floor; how many there are. `ids` has room for `count`. */
OP_API int64_t op_at_least(const float *values, int64_t count, float floor, int64_t *ids);

/* Ids of the k greatest values, 0 < k <= count. scratch: 2 k words. */
OP_API void op_top_k(const float *values, int64_t count, int64_t k, uint64_t *scratch, int64_t *ids);

/* Ids of the smallest set of most probable tokens whose mass, summed in float64 from the most probable down, reaches
 * top_p (all tokens where it never does); how many. probs >= 0; scratch: 2 count words; `ids` has room for `count`. */
OP_API int64_t op_top_p(const float *probs, int64_t count, double top_p, uint64_t *scratch, int64_t *ids);

/* Sum of exp(score - top) over a row whose greatest score is `top`. */
OP_API double op_total(const float *scores, int64_t count, float top);

/* The place whose stretch of the cumulative distribution holds uniform, a number in [0, 1); never one without mass. A token's
 * mass is its value, or, where `scores` is not 0, exp(value - top). */
OP_API int64_t op_quantile(const float *values, int64_t count, int scores, float top, double uniform);

#endif
