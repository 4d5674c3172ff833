/* Attention with an online softmax over tiles of 32 keys (after Dao et al., FlashAttention, arXiv 2205.14135).
 *
 * Row invariance: a row sees the keys of its own path in logical order (the cached prefix, its ancestors,
 * itself); tiles begin at multiples of 32 of the logical position, and every (row, head) has one accumulation
 * chain whose operations depend on nothing but its own path. So a row of a tree gets the bits of the same
 * tokens decoded one at a time, whatever else is in the pass and however the work is cut up. What a row must
 * not see is never multiplied: stale or foreign NaN stays where it is. */
#include "attention.h"

#include "pass_vec.h"

enum { TILE = ATTENTION_TILE, VECS = TILE / VW };

#if VW == 16
enum { BLOCK = 6 }; /* rows whose accumulators stay in registers, of which there are 32 here and 16 below */
#elif VW == 8
enum { BLOCK = 3 };
#else
enum { BLOCK = 2 };
#endif

typedef struct {
    float *q, *acc;       /* [ATTENTION_ROWS, width] */
    float *keys;          /* [head_dim, TILE]: transposed, so that a row's scores need no horizontal sum */
    float *values;        /* [TILE, width] */
    float *scores;        /* [ATTENTION_ROWS, TILE] */
    float *high, *total;  /* [ATTENTION_ROWS] running maximum and sum */
    float *shrink;        /* [ATTENTION_ROWS] */
    const char *zeros;    /* a key or value of zeros */
    int64_t width;        /* head_dim rounded up to whole tiles */
} scratch_space;

static int64_t padded(int64_t head_dim) { return (head_dim + TILE - 1) / TILE * TILE; }

int64_t attention_scratch_bytes(int64_t head_dim) {
    int64_t width = padded(head_dim);
    return 4 * (ATTENTION_ROWS * (2 * width + TILE + 3) + (head_dim + 1) * TILE + (TILE + 1) * width) + 64;
}

static scratch_space scratch_layout(void *memory, int64_t head_dim) {
    scratch_space s;
    float *p = memory;
    s.width = padded(head_dim);
    s.q = p, p += ATTENTION_ROWS * s.width;
    s.acc = p, p += ATTENTION_ROWS * s.width;
    s.keys = p, p += head_dim * TILE;
    s.values = p, p += TILE * s.width;
    s.scores = p, p += ATTENTION_ROWS * TILE;
    s.zeros = (const char *)p, p += s.width;
    s.high = p, p += ATTENTION_ROWS;
    s.total = p, p += ATTENTION_ROWS;
    s.shrink = p;
    memset((void *)s.zeros, 0, 4 * s.width);
    return s;
}

/* c[r][0 .. TILE) = shrink[r] * c[r] (or 0) + sum over k of a[r][k] * b[k], in order of k. */
PASS_INLINE void rows_times(const int rows, int64_t depth, const float *a, int64_t lda, const float *b, int64_t ldb,
                            float *c, int64_t ldc, const float *shrink) {
    vf sum[BLOCK][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++)
            sum[r][v] = shrink ? v_load(c + r * ldc + v * VW) * shrink[r] : (vf){0};
    for (int64_t k = 0; k < depth; k++) {
        vf line[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) line[v] = v_load(b + k * ldb + v * VW);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf x = v_set(a[r * lda + k]);
#pragma GCC unroll 8
            for (int v = 0; v < VECS; v++) sum[r][v] = v_fma(x, line[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) v_store(c + r * ldc + v * VW, sum[r][v]);
}

static void block_times(int64_t rows, int64_t depth, const float *a, int64_t lda, const float *b, int64_t ldb,
                        float *c, int64_t ldc, const float *shrink) {
    for (; rows >= BLOCK; rows -= BLOCK) {
        rows_times(BLOCK, depth, a, lda, b, ldb, c, ldc, shrink);
        a += BLOCK * lda, c += BLOCK * ldc, shrink += shrink ? BLOCK : 0;
    }
#if VW == 16
    if (rows >= 3) {
        rows_times(3, depth, a, lda, b, ldb, c, ldc, shrink);
        a += 3 * lda, c += 3 * ldc, shrink += shrink ? 3 : 0, rows -= 3;
    }
#endif
    if (rows == 2) rows_times(2, depth, a, lda, b, ldb, c, ldc, shrink);
    if (rows == 1) rows_times(1, depth, a, lda, b, ldb, c, ldc, shrink);
}

#if defined(__AVX2__)
/* Eight rows of eight 32-bit words, transposed. */
PASS_INLINE void transpose8(__m256i x[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            b[4 * i + 2 * j] = _mm256_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        x[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}
#endif

/* keys: [head_dim, TILE] float from TILE entries. */
static void load_keys(const char *const entry[TILE], int64_t head_dim, int bf16, float *keys) {
    int64_t d = 0;
#if defined(__AVX2__)
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    for (; bf16 && d + 16 <= head_dim; d += 16)
        for (int j = 0; j < TILE; j += 8) {
            __m256i x[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) x[i] = _mm256_loadu_si256((const __m256i *)(entry[j + i] + 2 * d));
            transpose8(x);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) { /* a word holds dimensions d + 2 i (low half) and d + 2 i + 1 */
                _mm256_storeu_si256((__m256i *)(keys + (d + 2 * i) * TILE + j), _mm256_slli_epi32(x[i], 16));
                _mm256_storeu_si256((__m256i *)(keys + (d + 2 * i + 1) * TILE + j), _mm256_and_si256(x[i], high));
            }
        }
    for (; !bf16 && d + 8 <= head_dim; d += 8)
        for (int j = 0; j < TILE; j += 8) {
            __m256i x[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) x[i] = _mm256_loadu_si256((const __m256i *)(entry[j + i] + 4 * d));
            transpose8(x);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) _mm256_storeu_si256((__m256i *)(keys + (d + i) * TILE + j), x[i]);
        }
#endif
    for (; d < head_dim; d++)
        for (int j = 0; j < TILE; j++)
            keys[d * TILE + j] = bf16 ? from_bf16(((const uint16_t *)entry[j])[d]) : ((const float *)entry[j])[d];
}

/* values: [count, width] float from count entries; columns from head_dim on are left as they are. */
static void load_values(const char *const *entry, int count, int64_t head_dim, int bf16, float *values, int64_t width) {
    for (int j = 0; j < count; j++) {
        float *to = values + j * width;
        int64_t d = 0;
        if (!bf16) {
            memcpy(to, entry[j], 4 * head_dim);
            continue;
        }
        const uint16_t *from = (const uint16_t *)entry[j];
        for (; d + VW <= head_dim; d += VW) v_store(to + d, v_from_bf16(from + d));
        for (; d < head_dim; d++) to[d] = from_bf16(from[d]);
    }
}

/* Ask for the next tile of the cached prefix while this one is worked on: hardware doesn't follow the column order in
 * which keys are read. */
static void ask_for(const char *entries, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(entries + at);
}

/* Turn the scores of the first count keys into weights relative to the running maximum; the others become 0. */
static void soften(float *scores, int count, float *high, float *total, float *shrink) {
    for (int j = count; j < TILE; j++) scores[j] = -INFINITY;
    vf top = v_load(scores);
    for (int v = 1; v < VECS; v++) top = v_max(top, v_load(scores + v * VW));
    float before = *high, now = v_highest(top);
    now = before > now ? before : now;
    vf sum = {0};
    for (int v = 0; v < VECS; v++) {
        vf weight = v_exp(v_load(scores + v * VW) - now);
        v_store(scores + v * VW, weight);
        sum += weight;
    }
    vf fall = v_exp(v_set(before - now));
    *shrink = fall[0];
    *total = *total * fall[0] + v_sum(sum);
    *high = now;
}

void attention_run(const attention_shape *shape, const attention_chunk *chunks, const attention_path *paths,
                   const attention_item *item, int64_t layer, const float *q, float *out, void *memory) {
    const attention_path *path = paths + item->path;
    const attention_chunk *chunk = chunks + path->chunk;
    const int64_t dim = shape->head_dim, group = shape->heads / shape->kv_heads, length = chunk->length;
    const int64_t bytes = dim * (shape->bf16 ? 2 : 4);
    const int64_t plane = (layer * shape->kv_heads + item->kv_head) * chunk->capacity * bytes;
    const char *keys = chunk->keys + plane, *values = chunk->values + plane;
    const int64_t pairs = item->end - item->begin;
    const float scale = (float)(1.0 / sqrt((double)dim));
    scratch_space s = scratch_layout(memory, dim);
    int64_t position[ATTENTION_ROWS], place[ATTENTION_ROWS]; /* each pair's position, and offset of its head in out */

    for (int64_t i = 0; i < pairs; i++) {
        int64_t row = path->member[(item->begin + i) / group];
        int64_t head = item->kv_head * group + (item->begin + i) % group;
        const float *from = q + (chunk->first + row) * shape->q_stride + head * dim;
        position[i] = length + (path->depth ? path->depth[row] : row);
        place[i] = (chunk->first + row) * shape->out_stride + head * dim;
        for (int64_t d = 0; d < dim; d++) s.q[i * s.width + d] = from[d] * scale;
        s.high[i] = -INFINITY, s.total[i] = 0;
    }
    memset(s.acc, 0, 4 * pairs * s.width);
    if (s.width != dim) memset(s.values, 0, 4 * TILE * s.width);

    ask_for(keys, TILE * bytes);
    ask_for(values, TILE * bytes);
    int64_t first = 0; /* pairs before it have seen all their keys */
    for (int64_t start = 0; start <= position[pairs - 1]; start += TILE) {
        while (position[first] < start) first++;
        int64_t left = position[pairs - 1] + 1 - start;
        int count = left < TILE ? (int)left : TILE;
        const char *entry[TILE], *value[TILE];
        for (int j = 0; j < TILE; j++) {
            int64_t at = start + j;
            if (at >= length && path->node && j < count) at = length + path->node[at - length];
            entry[j] = j < count ? keys + at * bytes : s.zeros;
            value[j] = values + at * bytes;
        }
        ask_for(keys + (start + TILE) * bytes, TILE * bytes);
        ask_for(values + (start + TILE) * bytes, TILE * bytes);
        load_keys(entry, dim, shape->bf16, s.keys);
        load_values(value, count, dim, shape->bf16, s.values, s.width);
        block_times(pairs - first, dim, s.q + first * s.width, s.width, s.keys, TILE, s.scores + first * TILE, TILE, 0);
        for (int64_t i = first, next; i < pairs; i = next) { /* runs of pairs that see the same number of keys */
            int64_t seen = position[i] + 1 - start;
            seen = seen < TILE ? seen : TILE;
            for (next = i; next < pairs; next++) {
                int64_t sees = position[next] + 1 - start;
                if ((sees < TILE ? sees : TILE) != seen) break;
                soften(s.scores + next * TILE, (int)seen, s.high + next, s.total + next, s.shrink + next);
            }
            for (int64_t d = 0; d < s.width; d += TILE)
                block_times(next - i, seen, s.scores + i * TILE, TILE, s.values + d, s.width,
                            s.acc + i * s.width + d, s.width, s.shrink + i);
        }
    }
    for (int64_t i = 0; i < pairs; i++) {
        float inverse = 1.0f / s.total[i];
        for (int64_t d = 0; d < dim; d++) out[place[i] + d] = s.acc[i * s.width + d] * inverse;
    }
}
