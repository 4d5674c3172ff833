/* One OpenMP team runs the whole pass. Its threads wait for each other at a barrier between stages. Nothing outlives a
 * call: weights, cache and scratch are the caller's, so any number of models and callers share a process. */
#include "pass.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "norm.h"
#include "pass_plan.h"

#ifdef _OPENMP
#include <omp.h>
#else /* a compiler without OpenMP: one thread */
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

enum { FORMATS = 3 };
enum { BARRIER_SPINS = 5000 }; /* iterations before a waiting thread yields its time slice; chosen by hand */
enum { ATTENTION, Q, K, V, O, GATE, UP, DOWN, COUNTERS }; /* of work that the threads of a layer's stages share */

typedef struct {
    float *x[2], *normed, *qkv, *mixed, *gate, *up, *back;
    char *act[FORMATS];
    int64_t *counter; /* [layers][COUNTERS] and the head's: the next piece of work */
    char *attention;
    int64_t attention_bytes, total;
} pass_scratch;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static pass_scratch scratch_layout(const pass_model *m, int64_t rows, int threads, char *memory) {
    pass_scratch s;
    int64_t at = 0, qkv = (m->heads + 2 * m->kv_heads) * m->head_dim;
    int64_t widest = larger(larger(m->hidden, m->intermediate), m->heads * m->head_dim);
#define TAKE(bytes) (char *)((uintptr_t)memory + (uintptr_t)at); at += ((bytes) + 63) / 64 * 64
    s.x[0] = (float *)TAKE(4 * rows * m->hidden);
    s.x[1] = (float *)TAKE(4 * rows * m->hidden);
    s.normed = (float *)TAKE(4 * rows * m->hidden);
    s.back = (float *)TAKE(4 * rows * m->hidden);
    s.qkv = (float *)TAKE(4 * rows * qkv);
    s.mixed = (float *)TAKE(4 * rows * m->heads * m->head_dim);
    s.gate = (float *)TAKE(4 * rows * m->intermediate);
    s.up = (float *)TAKE(4 * rows * m->intermediate);
    for (int f = 0; f < FORMATS; f++) {
        s.act[f] = TAKE(op_act_bytes(f, (int)rows, widest));
    }
    s.counter = (int64_t *)TAKE(8 * (m->layers * COUNTERS + 1));
    s.attention_bytes = (attention_scratch_bytes(m->head_dim) + 63) / 64 * 64;
    s.attention = TAKE(s.attention_bytes * threads);
#undef TAKE
    s.total = at;
    return s;
}

int64_t op_pass_scratch_bytes(const pass_model *model, int64_t rows, int threads) {
    return scratch_layout(model, rows, threads, NULL).total;
}

/* The barrier of the threads of one pass. A waiting thread spins for a few microseconds, since a
 * pass has hundreds of stages, and then gives up its time slice: on a busy machine the thread it waits for needs it. */
typedef struct {
    int32_t arrived, phase;
    char padding[56];
} barrier;

typedef struct {
    barrier *barrier;
    int tid, nt;
} team;

static void barrier_wait(team t) {
    if (t.nt == 1) return;
    int32_t phase = __atomic_load_n(&t.barrier->phase, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&t.barrier->arrived, 1, __ATOMIC_ACQ_REL) == t.nt) {
        __atomic_store_n(&t.barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&t.barrier->phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&t.barrier->phase, __ATOMIC_ACQUIRE) == phase; spins++) {
        if (spins > BARRIER_SPINS)
            sched_yield();
#if defined(__x86_64__)
        else
            __builtin_ia32_pause();
#endif
    }
}

/* The columns that op_quantize_rows gives to a thread: what it writes there needs no barrier before it is quantized. */
static void share(int format, int64_t cols, team t, int64_t *from, int64_t *to) {
    int64_t size = format == OP_ACT_INT8 ? 32 : 2, pieces = (cols + size - 1) / size;
    if (format == OP_ACT_INT8) pieces = (pieces + 1) / 2 * 2;
    *from = pieces * t.tid / t.nt * size, *to = pieces * (t.tid + 1) / t.nt * size;
    if (*from > cols) *from = cols;
    if (*to > cols) *to = cols;
}

/* x as the matrices of one stage read it: quantized in every format that one of them wants. The thread has written its
 * share of columns in the first matrix' format; the caller waits at the barrier before multiplying. */
static void prepare(const pass_scratch *s, const op_matrix *const *w, int count, const float *x, int64_t rows, team t) {
    int done = 0;
    for (int i = 0; i < count; i++) {
        int format = w[i]->act_format;
        if (done >> format & 1) continue;
        if (done) barrier_wait(t); /* another format, other shares */
        done |= 1 << format;
        op_act act = op_act_at(s->act[format], format, (int)rows, w[i]->cols);
        op_quantize_rows(&act, x, w[i]->cols, t.tid, t.nt);
    }
}

static void multiply(const pass_scratch *s, const op_matrix *w, int64_t rows, float *y, int64_t ldy, int64_t *next,
                     team t) {
    op_act act = op_act_at(s->act[w->act_format], w->act_format, (int)rows, w->cols);
    op_matmul(w, &act, y, ldy, next, t.nt);
}

/* to = from + y + bias (y NULL: to is from) and normed = norm(to) * weight (NULL: no norm), in this thread's share of
 * columns. Every thread sums the squares of whole rows itself: that costs less than a barrier. */
static void add_and_norm(const pass_model *m, const float *from, float *to, const float *y, const float *bias,
                         const float *weight, float *tap, float *normed, int64_t rows, int format, team t) {
    int64_t first, last, hidden = m->hidden;
    share(format, hidden, t, &first, &last);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = from + r * hidden, *step = y ? y + r * hidden : NULL;
        float factor = weight ? rms_factor(x, step, step ? bias : NULL, m->norm_eps, hidden) : 0;
        for (int64_t i = first; step && i < last; i++) to[r * hidden + i] = x[i] + step[i];
        if (step && bias) add_row(to + r * hidden + first, bias + first, last - first);
        const float *sum = step ? to + r * hidden : x;
        if (tap) memcpy(tap + r * hidden + first, sum + first, 4 * (last - first));
        for (int64_t i = first; weight && i < last; i++) normed[r * hidden + i] = sum[i] * factor * weight[i];
    }
}

/* Bias, norm, rotation, and keys and values into the cache: one (row, head) at a time. */
static void place_heads(const pass_model *m, const pass_layer *layer, int64_t number, const pass_plan *plan,
                        float *qkv, int64_t rows, team t) {
    const int64_t dim = m->head_dim, half = dim / 2, heads = m->heads + 2 * m->kv_heads;
    const int64_t bytes = dim * (m->cache_bf16 ? 2 : 4);
    for (int64_t unit = rows * heads * t.tid / t.nt; unit < rows * heads * (t.tid + 1) / t.nt; unit++) {
        int64_t r = unit / heads, h = unit % heads;
        float *head = qkv + r * heads * dim + h * dim;
        const float *cosine = m->cosine + plan->position[r] * half, *sine = m->sine + plan->position[r] * half;
        int64_t key = h - m->heads, value = key - m->kv_heads;
        const float *bias = value >= 0 ? layer->v_bias : key >= 0 ? layer->k_bias : layer->q_bias;
        if (bias) add_row(head, bias + (value >= 0 ? value : key >= 0 ? key : h) * dim, dim);
        const float *norm = value >= 0 ? NULL : key >= 0 ? layer->k_norm : layer->q_norm;
        if (norm) norm_row(head, norm, m->norm_eps, dim);
        if (value < 0) rotate_half(head, cosine, sine, half);
        if (key < 0) continue;
        const attention_chunk *chunk = plan->chunks + plan->chunk_of[r];
        int64_t kv_head = value >= 0 ? value : key;
        int64_t entry = (number * m->kv_heads + kv_head) * chunk->capacity + chunk->length + (r - chunk->first);
        store_row(head, dim, m->cache_bf16, (value >= 0 ? chunk->values : chunk->keys) + entry * bytes);
    }
}

static void attend(const pass_model *m, int64_t number, const pass_plan *plan, int64_t *counter, const float *q,
                   float *out, char *scratch) {
    const attention_shape shape = {m->heads,
                                   m->kv_heads,
                                   m->head_dim,
                                   (m->heads + 2 * m->kv_heads) * m->head_dim,
                                   m->heads * m->head_dim,
                                   m->cache_bf16};
    for (;;) { /* first come, first served: which thread takes a piece changes no bit */
        int64_t next = __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        if (next >= plan->item_count) return;
        attention_run(&shape, plan->chunks, plan->paths, plan->items + next, number, q, out, scratch);
    }
}

static void gate_rows(const pass_model *m, const pass_layer *layer, const pass_scratch *s, int64_t rows, team t) {
    int64_t first, last;
    share(layer->down.act_format, m->intermediate, t, &first, &last);
    for (int64_t r = 0; r < rows; r++) {
        float *gate = s->gate + r * m->intermediate + first, *up = s->up + r * m->intermediate + first;
        if (layer->gate_bias) add_row(gate, layer->gate_bias + first, last - first);
        if (layer->up_bias) add_row(up, layer->up_bias + first, last - first);
        silu_multiply(gate, up, last - first, gate);
    }
}

/* The head has written its scores to the front of the row. Each moves to the place of its id, the last one first,
 * since an id is never less than its place. All other places become -inf. */
static void spread_row(float *row, const int32_t *ids, int64_t count, int64_t vocab) {
    int64_t end = vocab;
    for (int64_t place = count; place-- > 0 && ids[place] > place; end = ids[place]) {
        row[ids[place]] = row[place];
        for (int64_t id = ids[place] + 1; id < end; id++) row[id] = -INFINITY;
        count = place;
    }
    for (int64_t id = count; id < end; id++) row[id] = -INFINITY;
}

static void run_team(const pass_model *m, const pass_call *call, const pass_plan *plan, const pass_scratch *s, team t) {
    const int64_t rows = call->rows, hidden = m->hidden, mixed = m->heads * m->head_dim;
    const int64_t qkv = mixed + 2 * m->kv_heads * m->head_dim;
    for (int64_t r = t.tid; r < rows; r += t.nt)
        op_unpack_rows(&m->embedding, call->tokens[r], 1, s->x[0] + r * hidden);
    barrier_wait(t);
    for (int64_t n = 0; n < m->layers; n++) {
        const pass_layer *layer = m->layer + n, *last = n > 0 ? layer - 1 : NULL;
        int64_t *next = s->counter + n * COUNTERS;
        const int64_t kept_at = m->cache_layer ? m->cache_layer[n] : n;
        const op_matrix *first[] = {&layer->q, &layer->k, &layer->v}, *second[] = {&layer->o};
        const op_matrix *third[] = {&layer->gate, &layer->up}, *fourth[] = {&layer->down};
        float *tap = last && call->layer_taps ? call->layer_taps[n - 1] : NULL;
        /* The stream moves from x[1] to x[0] here and back below: others still read what this thread would change. */
        add_and_norm(m, s->x[last ? 1 : 0], s->x[0], last ? s->back : NULL, last ? last->down_bias : NULL,
                     layer->attention_norm, tap, s->normed, rows, layer->q.act_format, t);
        prepare(s, first, 3, s->normed, rows, t);
        barrier_wait(t);
        multiply(s, &layer->q, rows, s->qkv, qkv, next + Q, t);
        multiply(s, &layer->k, rows, s->qkv + mixed, qkv, next + K, t);
        multiply(s, &layer->v, rows, s->qkv + mixed + m->kv_heads * m->head_dim, qkv, next + V, t);
        barrier_wait(t);
        place_heads(m, layer, kept_at, plan, s->qkv, rows, t);
        barrier_wait(t);
        attend(m, kept_at, plan, next + ATTENTION, s->qkv, s->mixed, s->attention + t.tid * s->attention_bytes);
        barrier_wait(t);
        prepare(s, second, 1, s->mixed, rows, t);
        barrier_wait(t);
        multiply(s, &layer->o, rows, s->back, hidden, next + O, t);
        barrier_wait(t);
        add_and_norm(m, s->x[0], s->x[1], s->back, layer->o_bias, layer->mlp_norm, NULL, s->normed, rows,
                     layer->gate.act_format, t);
        prepare(s, third, 2, s->normed, rows, t);
        barrier_wait(t);
        multiply(s, &layer->gate, rows, s->gate, m->intermediate, next + GATE, t);
        multiply(s, &layer->up, rows, s->up, m->intermediate, next + UP, t);
        barrier_wait(t);
        gate_rows(m, layer, s, rows, t);
        prepare(s, fourth, 1, s->gate, rows, t);
        barrier_wait(t);
        multiply(s, &layer->down, rows, s->back, hidden, next + DOWN, t);
        barrier_wait(t);
    }
    const pass_layer *last = m->layer + m->layers - 1;
    add_and_norm(m, s->x[1], s->x[0], s->back, last->down_bias, NULL,
                 call->layer_taps ? call->layer_taps[m->layers - 1] : NULL, NULL, rows, OP_ACT_F32, t);
    barrier_wait(t);
    if (call->hidden)
        add_and_norm(m, s->x[0], NULL, NULL, NULL, m->final_norm, NULL, call->hidden, rows, OP_ACT_F32, t);
    if (call->wanted == 0) return;
    int64_t from, to;
    share(m->head.act_format, hidden, t, &from, &to);
    for (int64_t i = 0; i < call->wanted; i++) {
        const float *x = s->x[0] + call->wanted_row[i] * hidden;
        float factor = rms_factor(x, NULL, NULL, m->norm_eps, hidden);
        for (int64_t k = from; k < to; k++) s->normed[i * hidden + k] = x[k] * factor * m->final_norm[k];
    }
    const op_matrix *head[] = {&m->head};
    prepare(s, head, 1, s->normed, call->wanted, t);
    barrier_wait(t);
    multiply(s, &m->head, call->wanted, call->logits, m->vocab, s->counter + m->layers * COUNTERS, t);
    if (!m->head_ids) return;
    barrier_wait(t);
    for (int64_t i = t.tid; i < call->wanted; i += t.nt)
        spread_row(call->logits + i * m->vocab, m->head_ids, m->head.rows, m->vocab);
}

int op_pass_run(const pass_model *model, const pass_call *call, void *memory, int threads) {
    pass_plan plan;
    if (call->rows == 0) return 0;
    if (pass_plan_make(&plan, model, call, threads) < 0) return -1;
    pass_scratch s = scratch_layout(model, call->rows, threads, memory);
    memset(s.counter, 0, 8 * (model->layers * COUNTERS + 1));
    barrier barrier_of_pass = {0, 0, {0}};
#pragma omp parallel num_threads(threads)
    run_team(model, call, &plan, &s, (team){&barrier_of_pass, omp_get_thread_num(), omp_get_num_threads()});
    pass_plan_free(&plan);
    return 0;
}

int op_attention(const pass_model *model, const pass_call *call, int64_t layer, const float *q, float *out,
                 int threads) {
    pass_plan plan;
    int64_t bytes = (attention_scratch_bytes(model->head_dim) + 63) / 64 * 64;
    char *scratch = aligned_alloc(64, (size_t)(bytes * threads));
    if (!scratch || pass_plan_make(&plan, model, call, threads) < 0) {
        free(scratch);
        return -1;
    }
    int64_t counter = 0;
#pragma omp parallel num_threads(threads)
    attend(model, layer, &plan, &counter, q, out, scratch + omp_get_thread_num() * bytes);
    pass_plan_free(&plan);
    free(scratch);
    return 0;
}
