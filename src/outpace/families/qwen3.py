"""Qwen3, the dense models: RMSNorm of each query and key head, biases only where the config asks for them."""

from __future__ import annotations

from .family import Family
from .table import DECODER, known

FAMILY = Family(
    model_type="qwen3",
    gguf="qwen3",
    gguf_pairs="halves",
    tensors=(
        *DECODER,
        *known("q_norm", "k_norm"),
        *known("q_bias", "k_bias", "v_bias", "o_bias", when="attention_bias"),
    ),
)
