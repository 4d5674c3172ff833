/* The position of each row of a pass, and how its attention is cut into pieces of work. */
#ifndef OUTPACE_PASS_PLAN_H
#define OUTPACE_PASS_PLAN_H

#include "pass.h"

typedef struct {
    attention_chunk *chunks;
    attention_path *paths;
    attention_item *items;
    int32_t *chunk_of, *position; /* [rows] */
    int64_t item_count;
    void *memory;
} pass_plan;

/* 0, or -1 when memory ran out. */
int pass_plan_make(pass_plan *plan, const pass_model *model, const pass_call *call, int threads);
void pass_plan_free(pass_plan *plan);

#endif
