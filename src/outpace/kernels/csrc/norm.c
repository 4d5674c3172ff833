#include "norm.h"

#include "pass_vec.h"

PASS_INLINE vf sum_at(const float *x, const float *y, const float *bias, int64_t i) {
    vf v = v_load(x + i);
    if (y) v += v_load(y + i);
    if (bias) v += v_load(bias + i);
    return v;
}

PASS_INLINE vf squares(const float *x, const float *y, const float *bias, int64_t width) {
    vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * VW <= width; i += 4 * VW)
        for (int j = 0; j < 4; j++) {
            vf v = sum_at(x, y, bias, i + j * VW);
            sum[j] = v_fma(v, v, sum[j]);
        }
    for (; i < width; i += VW) {
        float tail[3][VW] = {{0}};
        size_t bytes = 4 * (size_t)(width - i < VW ? width - i : VW);
        memcpy(tail[0], x + i, bytes);
        if (y) memcpy(tail[1], y + i, bytes);
        if (bias) memcpy(tail[2], bias + i, bytes);
        vf v = sum_at(tail[0], y ? tail[1] : 0, bias ? tail[2] : 0, 0);
        sum[0] = v_fma(v, v, sum[0]);
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

float rms_factor(const float *x, const float *y, const float *bias, float eps, int64_t width) {
    vf sum = !y ? squares(x, 0, 0, width) : !bias ? squares(x, y, 0, width) : squares(x, y, bias, width);
    return (float)(1.0 / sqrt((double)v_sum(sum) / (double)width + eps));
}

void norm_row(float *x, const float *weight, float eps, int64_t width) {
    float factor = rms_factor(x, 0, 0, eps, width);
    for (int64_t i = 0; i < width; i++) x[i] = x[i] * factor * weight[i];
}

void rotate_half(float *head, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

void silu_multiply(const float *gate, const float *up, int64_t width, float *out) {
    int64_t i = 0;
    for (; i + VW <= width; i += VW) {
        vf g = v_load(gate + i);
        v_store(out + i, g / (v_exp(-g) + 1.0f) * v_load(up + i));
    }
    if (i < width) { /* the same operations on a padded copy: an element's bits don't depend on its place */
        float g[VW] = {0}, u[VW] = {0}, o[VW];
        memcpy(g, gate + i, 4 * (width - i));
        memcpy(u, up + i, 4 * (width - i));
        vf x = v_load(g);
        v_store(o, x / (v_exp(-x) + 1.0f) * v_load(u));
        memcpy(out + i, o, 4 * (width - i));
    }
}

void add_row(float *x, const float *y, int64_t width) {
    for (int64_t i = 0; i < width; i++) x[i] += y[i];
}

void store_row(const float *x, int64_t width, int bf16, void *out) {
    if (!bf16) {
        memcpy(out, x, 4 * width);
        return;
    }
    for (int64_t i = 0; i < width; i++) ((uint16_t *)out)[i] = to_bf16(x[i]);
}
