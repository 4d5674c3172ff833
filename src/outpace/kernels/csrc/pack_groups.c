/* Reading and writing groups of 32 quantized weights: GGUF's block layouts and our packed ones. */
#include "linear_simd.h"
#include "pack.h"

/* The 6-bit scale and minimum of group g among the 12 bytes of a K block. */
static void k_scales(const uint8_t *packed, int g, uint8_t *scale, uint8_t *low) {
    if (g < 4) {
        *scale = packed[g] & 63;
        *low = packed[g + 4] & 63;
    } else {
        *scale = (uint8_t)((packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4);
        *low = (uint8_t)(packed[g + 4] >> 4 | (packed[g] >> 6) << 4);
    }
}

static void nibbles(const uint8_t *bytes, uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = bytes[i] & 15;
        q[i + 16] = bytes[i] >> 4;
    }
}

static void fifth_bits(const uint8_t *bytes, uint8_t *q) {
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(q[i] | ((bytes[i / 8] >> (i % 8)) & 1) << 4);
}

void read_raw_group(int kind, const uint8_t *row, int64_t g, weight_group *out) {
    const int in_block = (int)(g % 8);
    out->m = 0;
    out->scale = out->low = 0;
    switch (kind) {
    case OP_Q4_0:
        row += 18 * g;
        nibbles(row + 2, out->q);
        break;
    case OP_Q4_1:
        row += 20 * g;
        out->m = load_u16(row + 2);
        nibbles(row + 4, out->q);
        break;
    case OP_Q5_0:
        row += 22 * g;
        nibbles(row + 6, out->q);
        fifth_bits(row + 2, out->q);
        break;
    case OP_Q5_1:
        row += 24 * g;
        out->m = load_u16(row + 2);
        nibbles(row + 8, out->q);
        fifth_bits(row + 4, out->q);
        break;
    case OP_Q8_0:
        row += 34 * g;
        for (int i = 0; i < 32; i++) out->q[i] = row[2 + i] ^ 0x80;
        break;
    case OP_Q4_K:
    case OP_Q5_K: {
        row += (kind == OP_Q4_K ? 144 : 176) * (g / 8);
        out->m = load_u16(row + 2);
        k_scales(row + 4, in_block, &out->scale, &out->low);
        const uint8_t *low = row + (kind == OP_Q4_K ? 16 : 48) + 32 * (in_block / 2), *high = row + 16;
        for (int i = 0; i < 32; i++) out->q[i] = (low[i] >> 4 * (in_block & 1)) & 15;
        if (kind == OP_Q5_K)
            for (int i = 0; i < 32; i++) out->q[i] = (uint8_t)(out->q[i] | ((high[i] >> in_block) & 1) << 4);
        break;
    }
    default: { /* Q6_K: two halves of 128, each four groups */
        row += 210 * (g / 8);
        const int half = in_block / 4, quarter = in_block % 4;
        const uint8_t *low = row + 64 * half + 32 * (quarter & 1), *high = row + 128 + 32 * half;
        for (int i = 0; i < 32; i++)
            out->q[i] = (uint8_t)(((low[i] >> 4 * (quarter / 2)) & 15) | ((high[i] >> 2 * quarter) & 3) << 4);
        out->scale = row[192 + 2 * in_block];
        out->low = row[193 + 2 * in_block];
        row += 208;
        break;
    }
    }
    out->d = load_u16(row);
}

void group_values(int kind, const weight_group *group, float *out) {
    const float d = half_to_float(group->d), m = half_to_float(group->m);
    switch (kind) {
    case OP_Q4_1:
    case OP_Q5_1:
        for (int i = 0; i < 32; i++) out[i] = d * (float)group->q[i] + m;
        break;
    case OP_Q4_K:
    case OP_Q5_K: {
        const float scale = d * (float)group->scale, low = m * (float)group->low;
        for (int i = 0; i < 32; i++) out[i] = scale * (float)group->q[i] - low;
        break;
    }
    case OP_Q6_K: {
        const float scale[2] = {d * (float)(int8_t)group->scale, d * (float)(int8_t)group->low};
        for (int i = 0; i < 32; i++) out[i] = scale[i / 16] * (float)(group->q[i] - 32);
        break;
    }
    default: {
        const int offset = kind == OP_Q4_0 ? 8 : kind == OP_Q5_0 ? 16 : 128;
        for (int i = 0; i < 32; i++) out[i] = d * (float)(group->q[i] - offset);
        break;
    }
    }
}

/* Where output r's parts of group g lie: *head its unit's head, the return value its group's first register. */
static uint8_t *locate(int_layout layout, const uint8_t *block, int64_t g, uint8_t **head) {
    *head = (uint8_t *)block + g / layout.groups_per_unit * unit_bytes(layout);
    return *head + layout.head_bytes + g % layout.groups_per_unit * layout.group_bytes;
}

void write_packed_group(int kind, uint8_t *block, int r, int64_t g, const weight_group *group) {
    const int_layout layout = layout_of(kind);
    const int at = (int)(g % layout.groups_per_unit);
    uint8_t *head, *values = locate(layout, block, g, &head);
    if (layout.k_quant) {
        store_u16(head + 2 * r, group->d);
        if (kind != OP_Q6_K) store_u16(head + 32 + 2 * r, group->m);
        head[64 + 32 * at + r] = group->scale;
        head[80 + 32 * at + r] = group->low;
    } else if (layout.groups_per_unit == 2) {
        store_u16(head + 32 * at + 2 * r, group->d);
    } else {
        store_u16(head + 2 * r, group->d);
        store_u16(head + 32 + 2 * r, group->m);
    }
    const uint8_t *q = group->q;
    if (layout.bits == 8) {
        for (int k = 0; k < 32; k++) values[64 * (k / 4) + 4 * r + k % 4] = q[k] ^ OP_BYTE_FLIP;
        return;
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            values[64 * i + 4 * r + j] = (uint8_t)((q[4 * i + j] & 15) | (q[16 + 4 * i + j] & 15) << 4);
    uint8_t *upper = values + 256 + 4 * r;
    if (layout.bits == 5) {
        for (int j = 0; j < 4; j++) {
            uint8_t bits = 0;
            for (int i = 0; i < 8; i++) bits = (uint8_t)(bits | (q[4 * i + j] >> 4) << i);
            upper[j] = bits;
        }
    }
    if (layout.bits == 6) {
        for (int j = 0; j < 4; j++) {
            uint8_t one = 0, two = 0;
            for (int i = 0; i < 4; i++) {
                one = (uint8_t)(one | (q[4 * i + j] >> 4) << 2 * i);
                two = (uint8_t)(two | (q[16 + 4 * i + j] >> 4) << 2 * i);
            }
            upper[j] = one;
            upper[64 + j] = two;
        }
    }
}

void read_packed_group(int kind, const uint8_t *block, int r, int64_t g, weight_group *out) {
    const int_layout layout = layout_of(kind);
    const int at = (int)(g % layout.groups_per_unit);
    uint8_t *head;
    const uint8_t *values = locate(layout, block, g, &head), *upper = values + 256 + 4 * r;
    out->m = 0;
    out->scale = out->low = 0;
    if (layout.k_quant) {
        out->d = load_u16(head + 2 * r);
        if (kind != OP_Q6_K) out->m = load_u16(head + 32 + 2 * r);
        out->scale = head[64 + 32 * at + r];
        out->low = head[80 + 32 * at + r];
    } else if (layout.groups_per_unit == 2) {
        out->d = load_u16(head + 32 * at + 2 * r);
    } else {
        out->d = load_u16(head + 2 * r);
        out->m = load_u16(head + 32 + 2 * r);
    }
    for (int k = 0; k < 32; k++) {
        const int i = k / 4, j = k % 4;
        if (layout.bits == 8) {
            out->q[k] = values[64 * i + 4 * r + j] ^ OP_BYTE_FLIP;
            continue;
        }
        uint8_t q = values[64 * (i % 4) + 4 * r + j];
        q = i < 4 ? q & 15 : q >> 4;
        if (layout.bits == 5) q = (uint8_t)(q | ((upper[j] >> i) & 1) << 4);
        if (layout.bits == 6) q = (uint8_t)(q | ((upper[64 * (i / 4) + j] >> 2 * (i % 4)) & 3) << 4);
        out->q[k] = q;
    }
}
