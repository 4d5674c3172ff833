"""Llama 2 and 3, SmolLM2, TinyLlama: biases only where the config asks for them."""

from __future__ import annotations

from .family import Family
from .table import DECODER, known

FAMILY = Family(
    model_type="llama",
    gguf="llama",
    gguf_pairs="neighbours",
    tensors=(
        *DECODER,
        *known("q_bias", "k_bias", "v_bias", "o_bias", when="attention_bias"),
        *known("gate_bias", "up_bias", "down_bias", when="mlp_bias"),
    ),
)
