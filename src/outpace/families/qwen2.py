"""Qwen2 and Qwen2.5: biases on query, key and value only."""

from __future__ import annotations

from .family import Family
from .table import DECODER, known

FAMILY = Family(
    model_type="qwen2",
    gguf="qwen2",
    gguf_pairs="halves",
    tensors=(*DECODER, *known("q_bias", "k_bias", "v_bias")),
)
