"""A decoder written as plainly as possible, to compare others with."""

from __future__ import annotations

import math

import numpy as np

from outpace.core.types import softmax
from outpace.families.config import DecoderConfig


def naive_logits(config: DecoderConfig, tensors: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits after the last of ``tokens``, head by head and position by position, nothing cached: float64."""
    d = config.head_dim

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * tensors[name]

    def apply(x: np.ndarray, name: str) -> np.ndarray:
        y = x @ tensors[f"{name}.weight"].T
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        out = x.copy()
        for i, frequency in enumerate(config.inv_freq):
            c, s = (config.rope_scale * f(position * frequency) for f in (math.cos, math.sin))
            a, b = x[i], x[i + d // 2]
            out[i], out[i + d // 2] = a * c - b * s, b * c + a * s
        return out

    def head_norm(x: np.ndarray, part: str) -> np.ndarray:
        name = f"{at}self_attn.{part}_norm.weight"
        return norm(x, name) if name in tensors else x

    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config.layers):
        at = f"model.layers.{layer}."
        h = norm(x, f"{at}input_layernorm.weight")
        q, k, v = (apply(h, f"{at}self_attn.{part}_proj") for part in "qkv")
        mixed = np.zeros((len(tokens), config.heads * d))
        for head in range(config.heads):
            own, shared = slice(head * d, (head + 1) * d), head // (config.heads // config.kv_heads)
            pick = slice(shared * d, (shared + 1) * d)
            keys = [rotate(head_norm(k[j, pick], "k"), j) for j in range(len(tokens))]
            for i in range(len(tokens)):
                query = rotate(head_norm(q[i, own], "q"), i)
                weights = np.array([query @ keys[j] for j in range(i + 1)]) / math.sqrt(d)
                mixed[i, own] = softmax(weights) @ v[: i + 1, pick]
        x = x + apply(mixed, f"{at}self_attn.o_proj")
        h = norm(x, f"{at}post_attention_layernorm.weight")
        gate = apply(h, f"{at}mlp.gate_proj")
        x = x + apply(gate / (1 + np.exp(-gate)) * apply(h, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
    return norm(x, "model.norm.weight")[-1] @ tensors["lm_head.weight"].T
