#include "select.h"

#include "pass_vec.h"

/* Bits of a radix digit, floats of a step, floats of a block, parts of a range; chosen by hand. */
enum { DIGIT = 11, STEP = 4 * VW, BLOCK = 1024, PARTS = 512 };

/* The order of floats as the order of whole numbers; -0 is 0. */
PASS_INLINE uint32_t rank_of(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

PASS_INLINE float value_of(uint32_t rank) {
    uint32_t bits = rank & 0x80000000u ? rank & 0x7fffffffu : ~rank;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Whether one of the next STEP values is >= floor (or > floor). */
PASS_INLINE int any_of(const float *values, float floor, int strictly) {
    vi found = {0};
    for (int j = 0; j < 4; j++) {
        vf x = v_load(values + j * VW);
        found |= strictly ? x > floor : x >= floor;
    }
#if VW == 16
    return _mm512_test_epi32_mask((__m512i)found, (__m512i)found) != 0;
#elif VW == 8
    return !_mm256_testz_si256((__m256i)found, (__m256i)found);
#else
    int any = 0;
    for (int j = 0; j < VW; j++) any |= found[j];
    return any;
#endif
}

int64_t op_at_least(const float *values, int64_t count, float floor, int64_t *ids) {
    int64_t n = 0, i = 0;
    for (; i < count; i += STEP) {
        int64_t stop = i + STEP <= count ? i + STEP : count;
        if (stop == i + STEP && !any_of(values + i, floor, 0)) continue;
        for (int64_t j = i; j < stop; j++) {
            ids[n] = j;
            n += values[j] >= floor;
        }
    }
    return n;
}

/* Sorts words by the 33 bits from `shift` on, keeping the order of equals: least digit first, and so, after three
 * digits, from `words` into `other`. */
static void sort_words(uint64_t *words, uint64_t *other, int64_t n, int shift) {
    for (int digit = 0; digit < 3; digit++, shift += DIGIT) {
        int64_t start[1 << DIGIT] = {0}, sum = 0;
        for (int64_t i = 0; i < n; i++) start[(words[i] >> shift) & ((1 << DIGIT) - 1)]++;
        for (int bucket = 0; bucket < 1 << DIGIT; bucket++) {
            int64_t size = start[bucket];
            start[bucket] = sum;
            sum += size;
        }
        for (int64_t i = 0; i < n; i++) other[start[(words[i] >> shift) & ((1 << DIGIT) - 1)]++] = words[i];
        uint64_t *swapped = words;
        words = other, other = swapped;
    }
}

/* The ids in the low halves of words, ascending. */
static void sorted_ids(uint64_t *words, uint64_t *other, int64_t n, int64_t *ids) {
    for (int64_t i = 0; i < n; i++) words[i] = (uint32_t)words[i];
    sort_words(words, other, n, 0);
    for (int64_t i = 0; i < n; i++) ids[i] = (uint32_t)other[i];
}

/* Moves the word at `place` down a heap whose least word is at 0. */
static void sift(uint64_t *heap, int64_t n, int64_t place) {
    uint64_t moving = heap[place];
    for (int64_t child; (child = 2 * place + 1) < n; place = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= moving) break;
        heap[place] = heap[child];
    }
    heap[place] = moving;
}

/* A heap of the best so far: a token's word is its value's rank, then its id from the top down, so that of two equals
 * the higher id is the lesser. Few tokens of a row ever enter it. */
void op_top_k(const float *values, int64_t count, int64_t k, uint64_t *scratch, int64_t *ids) {
    for (int64_t i = 0; i < k; i++) scratch[i] = (uint64_t)rank_of(values[i]) << 32 | (uint32_t)~i;
    for (int64_t place = k / 2; place-- > 0;) sift(scratch, k, place);
    float least = value_of(scratch[0] >> 32);
    for (int64_t i = k; i < count; i += STEP) {
        int64_t stop = i + STEP <= count ? i + STEP : count;
        if (stop == i + STEP && !any_of(values + i, least, 1)) continue;
        for (int64_t j = i; j < stop; j++) {
            if (!(values[j] > least)) continue;
            scratch[0] = (uint64_t)rank_of(values[j]) << 32 | (uint32_t)~j;
            sift(scratch, k, 0);
            least = value_of(scratch[0] >> 32);
        }
    }
    for (int64_t i = 0; i < k; i++) scratch[i] = ~scratch[i];
    sorted_ids(scratch, scratch + k, k, ids);
}

int64_t op_top_p(const float *probs, int64_t count, double top_p, uint64_t *scratch, int64_t *ids) {
    uint64_t *sorted = scratch + count;
    /* Few tokens hold the mass of a usual row. All those below the second floor together weigh less than what the set
     * may leave out; the third takes in all, for probabilities that add up to less than 1 by rounding. */
    const float floors[3] = {1.0f / 1024, (float)(0.9 * (1 - top_p) / (double)count), 0};
    for (int attempt = 0;; attempt++) {
        int64_t n = op_at_least(probs, count, floors[attempt], ids), size = 0;
        for (int64_t i = 0; i < n; i++) scratch[i] = (uint64_t)~rank_of(probs[ids[i]]) << 32 | (uint32_t)ids[i];
        sort_words(scratch, sorted, n, 32);
        double mass = 0;
        while (size < n && mass < top_p) mass += value_of(~(uint32_t)(sorted[size++] >> 32));
        if (mass < top_p && attempt < 2) continue;
        sorted_ids(sorted, scratch, size, ids);
        return size;
    }
}

/* The masses of up to BLOCK tokens: the values themselves, or in `made`. */
PASS_INLINE const float *masses(const float *values, int64_t count, int scores, float top, float made[BLOCK]) {
    if (!scores) return values;
    for (int64_t i = 0; i < count; i += VW) {
        float tail[VW];
        const float *from = values + i;
        if (count - i < VW) {
            for (int j = 0; j < VW; j++) tail[j] = i + j < count ? from[j] : -INFINITY;
            from = tail;
        }
        v_store(made + i, v_exp(v_load(from) - top));
    }
    return made;
}

/* Their sum: four side by side, then one, a fixed order. */
static double mass_of(const float *values, int64_t count, int scores, float top) {
    float made[BLOCK];
    double mass = 0;
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t size = count - i < BLOCK ? count - i : BLOCK, j = 0;
        const float *m = masses(values + i, size, scores, top, made);
        double lane[4] = {0};
        for (; j + 4 <= size; j += 4)
            for (int l = 0; l < 4; l++) lane[l] += m[j + l];
        for (; j < size; j++) lane[0] += m[j];
        mass += (lane[0] + lane[1]) + (lane[2] + lane[3]);
    }
    return mass;
}

double op_total(const float *scores, int64_t count, float top) { return mass_of(scores, count, 1, top); }

int64_t op_quantile(const float *values, int64_t count, int scores, float top, double uniform) {
    float made[BLOCK];
    double part[PARTS], total = 0, mass = 0;
    int64_t stride = (count + PARTS - 1) / PARTS;
    stride = (stride + BLOCK - 1) / BLOCK * BLOCK;
    for (int64_t i = 0; i < count; i += stride)
        total += part[i / stride] = mass_of(values + i, count - i < stride ? count - i : stride, scores, top);
    double wanted = uniform * total;
    int64_t i = 0, end = count;
    while (i < count && mass + part[i / stride] <= wanted) mass += part[i / stride], i += stride;
    if (i < count && i + stride < count) end = i + stride;
    for (; i < end; i += BLOCK) {
        int64_t size = end - i < BLOCK ? end - i : BLOCK;
        const float *m = masses(values + i, size, scores, top, made);
        for (int64_t j = 0; j < size; j++)
            if ((mass += m[j]) > wanted) return i + j;
    }
    /* The part's sum, taken in another order, was greater by rounding: its last token with mass it is. */
    while (end > 1 && !(masses(values + end - 1, 1, scores, top, made)[0] > 0)) end--;
    return end - 1;
}
