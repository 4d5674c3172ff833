/* A whole decoder pass in one call: embedding, layers, output head. */
#ifndef OUTPACE_PASS_H
#define OUTPACE_PASS_H

#include "attention.h"
#include "common.h"

/* Weights of a layer. Biases, q_norm and k_norm may be NULL. The matrices of one stage (q, k, v; gate, up) need not
 * share a kind. */
typedef struct {
    op_matrix q, k, v, o, gate, up, down;
    const float *attention_norm, *mlp_norm;          /* [hidden] */
    const float *q_norm, *k_norm;                    /* [head_dim] RMSNorm of each head, between bias and rotation */
    const float *q_bias, *k_bias, *v_bias, *o_bias;  /* [heads * head_dim], [kv_heads * head_dim] twice, [hidden] */
    const float *gate_bias, *up_bias, *down_bias;    /* [intermediate] twice, [hidden] */
} pass_layer;

typedef struct {
    int64_t layers, hidden, heads, kv_heads, head_dim, intermediate;
    float norm_eps;
    int32_t cache_bf16;           /* the cache's dtype: bfloat16, or float32 */
    const float *cosine, *sine;   /* [context, head_dim / 2] */
    op_matrix embedding;          /* a row a token id; of a tied model it is the head's own memory */
    const pass_layer *layer;      /* [layers] */
    const float *final_norm;      /* [hidden] */
    op_matrix head;
    int64_t vocab;
    const int32_t *head_ids;      /* [head.rows] the ids it scores, ascending; NULL: all */
    const int32_t *cache_layer;   /* [layers] where the cache keeps a layer's entries; NULL: in the layers' own order */
} pass_model;

/* One slot's rows, as the caller names them. parents[i]: the row of this chunk that row i follows, -1 for the last
 * cached entry; NULL for a chain. */
typedef struct {
    int64_t rows, length, capacity;
    char *keys, *values; /* [layers, kv_heads, capacity, head_dim] */
    const int32_t *parents;
} pass_chunk;

typedef struct {
    int64_t rows, chunks, wanted;
    const int32_t *tokens;       /* [rows], the chunks' rows one after the other */
    const pass_chunk *chunk;     /* [chunks] */
    const int32_t *wanted_row;   /* [wanted] rows whose logits are asked for */
    float *logits;               /* [wanted, vocab], -inf where the head scores nothing */
    float *const *layer_taps;    /* [layers]: NULL, or [rows, hidden] for the stream after that layer; NULL: none */
    float *hidden;               /* [rows, hidden] after the final norm, or NULL */
} pass_call;

/* Bytes of scratch for passes of up to `rows` rows and `threads` threads. */
OP_API int64_t op_pass_scratch_bytes(const pass_model *model, int64_t rows, int threads);

/* Runs the pass on `threads` threads. Writes each chunk's keys and values at its length; advancing it is the caller's
 * affair. scratch: 64-byte aligned, one call at a time. 0, or -1 when memory ran out (nothing is written then). */
OP_API int op_pass_run(const pass_model *model, const pass_call *call, void *scratch, int threads);

/* Attention alone, for tests: q [rows, (heads + 2 kv_heads) * head_dim], out [rows, heads * head_dim]. Reads the shape
 * from model, the chunks from call, and keys and values of `layer` that are in the cache already. */
OP_API int op_attention(const pass_model *model, const pass_call *call, int64_t layer, const float *q, float *out,
                        int threads);

#endif
