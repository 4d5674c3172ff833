#include "pass_plan.h"

#include <stdlib.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* depth[i] of each row below the last cached entry; leaf[i] whether no row follows it. Returns the number of leaves,
 * and adds up in *nodes how many rows the leaves' paths hold. */
static int64_t survey(const pass_chunk *chunk, int32_t *depth, char *leaf, int64_t *nodes) {
    int64_t leaves = 0;
    memset(leaf, 1, chunk->rows);
    for (int64_t i = 0; i < chunk->rows; i++) {
        int32_t parent = chunk->parents[i];
        depth[i] = parent < 0 ? 0 : depth[parent] + 1;
        if (parent >= 0) leaf[parent] = 0;
    }
    for (int64_t i = 0; i < chunk->rows; i++)
        if (leaf[i]) leaves++, *nodes += depth[i] + 1;
    return leaves;
}

/* Cut a path's (member, head) pairs into pieces, the deepest (most work) first. */
static int64_t cut(const attention_path *path, int32_t number, const pass_model *model, int64_t pieces,
                   attention_item *items) {
    int64_t group = model->heads / model->kv_heads, pairs = path->members * group, count = 0;
    int64_t size = (pairs + pieces - 1) / pieces;
    if (size > group && group <= ATTENTION_ROWS) size = (size + group - 1) / group * group; /* keep a row's heads together */
    if (size > ATTENTION_ROWS) size = group <= ATTENTION_ROWS ? ATTENTION_ROWS / group * group : ATTENTION_ROWS;
    for (int64_t begin = (pairs - 1) / size * size; begin >= 0; begin -= size)
        for (int64_t head = 0; head < model->kv_heads; head++) {
            int64_t end = least(begin + size, pairs);
            if (items) items[count] = (attention_item){number, (int32_t)head, (int32_t)begin, (int32_t)end};
            count++;
        }
    return count;
}

int pass_plan_make(pass_plan *plan, const pass_model *model, const pass_call *call, int threads) {
    const int64_t rows = call->rows;
    int64_t path_count = 0, nodes = 0;
    int32_t *depth = malloc(sizeof *depth * rows + 1);
    char *leaf = malloc(rows + 1);
    plan->memory = NULL;
    if (depth && leaf) {
        for (int64_t c = 0, first = 0; c < call->chunks; first += call->chunk[c++].rows)
            path_count += call->chunk[c].parents ? survey(call->chunk + c, depth + first, leaf + first, &nodes) : 1;
        plan->memory = malloc(sizeof *plan->chunks * call->chunks + sizeof *plan->paths * path_count +
                              4 * (4 * rows + nodes));
    }
    if (!plan->memory) {
        free(depth), free(leaf);
        return -1;
    }
    plan->chunks = plan->memory;
    plan->paths = (attention_path *)(plan->chunks + call->chunks);
    plan->chunk_of = (int32_t *)(plan->paths + path_count);
    plan->position = plan->chunk_of + rows;
    int32_t *depths = plan->position + rows, *member = depths + rows, *node = member + rows;
    attention_path *path = plan->paths;
    for (int64_t c = 0, first = 0; c < call->chunks; first += call->chunk[c++].rows) {
        const pass_chunk *chunk = call->chunk + c;
        plan->chunks[c] =
            (attention_chunk){first, chunk->rows, chunk->length, chunk->capacity, chunk->keys, chunk->values};
        for (int64_t i = 0; i < chunk->rows; i++) {
            depths[first + i] = chunk->parents ? depth[first + i] : (int32_t)i;
            plan->chunk_of[first + i] = (int32_t)c;
            plan->position[first + i] = (int32_t)chunk->length + depths[first + i];
        }
        if (!chunk->parents) {
            *path++ = (attention_path){(int32_t)c, (int32_t)chunk->rows, member, NULL, NULL};
            for (int64_t i = 0; i < chunk->rows; i++) *member++ = (int32_t)i;
            continue;
        }
        char *fresh = leaf + first; /* 1 leaf, 0 inner row, 2 already some path's member */
        for (int64_t i = 0; i < chunk->rows; i++) {
            if (fresh[i] != 1) continue;
            int32_t length = depths[first + i] + 1, members = 0;
            for (int32_t at = (int32_t)i, d = length - 1; d >= 0; at = chunk->parents[at], d--) node[d] = at;
            for (int32_t d = 0; d < length; d++)
                if (fresh[node[d]] != 2) member[members++] = node[d], fresh[node[d]] = 2;
            *path++ = (attention_path){(int32_t)c, members, member, node, depths + first};
            member += members, node += length;
        }
    }
    free(depth), free(leaf);

    int64_t pieces = (threads + model->kv_heads * path_count - 1) / (model->kv_heads * path_count);
    plan->item_count = 0;
    for (int64_t p = 0; p < path_count; p++) plan->item_count += cut(plan->paths + p, (int32_t)p, model, pieces, NULL);
    plan->items = malloc(sizeof *plan->items * plan->item_count);
    if (!plan->items) {
        free(plan->memory);
        return -1;
    }
    int64_t at = 0;
    for (int64_t p = 0; p < path_count; p++) at += cut(plan->paths + p, (int32_t)p, model, pieces, plan->items + at);
    return 0;
}

void pass_plan_free(pass_plan *plan) {
    free(plan->items);
    free(plan->memory);
}
