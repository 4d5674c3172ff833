/* Attention of a pass's rows over cached keys and values, with tree ancestors. */
#ifndef OUTPACE_ATTENTION_H
#define OUTPACE_ATTENTION_H

#include <stdint.h>

/* One slot's rows: rows first .. first + rows - 1 of the pass; entry length + i of the slot is row first + i. */
typedef struct {
    int64_t first, rows, length, capacity;
    char *keys, *values; /* [layers, kv_heads, capacity, head_dim] */
} attention_chunk;

/* A path from the last cached entry down to a leaf of the chunk's tree, and the rows computed along it: every
 * row of a chunk is a member of exactly one path. A chain is one path. */
typedef struct {
    int32_t chunk, members;
    const int32_t *member; /* [members] rows of the chunk, by increasing depth */
    const int32_t *node;   /* [depth of the leaf + 1] row of the chunk at each depth; NULL: the depth itself */
    const int32_t *depth;  /* [rows of the chunk]; NULL: the row itself */
} attention_path;

/* A piece of work: of path's (member, query head of the group) pairs, begin .. end - 1, for one KV head. */
typedef struct {
    int32_t path, kv_head, begin, end;
} attention_item;

typedef struct {
    int64_t heads, kv_heads, head_dim, q_stride, out_stride; /* strides in floats, of rows of q and out */
    int bf16;                                                /* the cache's dtype: bfloat16, or float32 */
} attention_shape;

/* Cached entries, and query rows, that are worked on together; chosen by hand. */
enum { ATTENTION_TILE = 32, ATTENTION_ROWS = 48 };

/* Bytes of scratch a thread needs. */
int64_t attention_scratch_bytes(int64_t head_dim);

/* q: [rows, q_stride], its heads' head_dim values first, rotated; out: [rows, out_stride]. scratch: 64-byte aligned. */
void attention_run(const attention_shape *shape, const attention_chunk *chunks, const attention_path *paths,
                   const attention_item *item, int64_t layer, const float *q, float *out, void *scratch);

#endif
