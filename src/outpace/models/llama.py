"""Llama 2 and 3, SmolLM2, TinyLlama: biases only where the config asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import DecoderConfig
from .families import read_config

MODEL_TYPES = ("llama",)


def config(hf_config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Llama config.json describes."""
    attention_bias = bool(hf_config.get("attention_bias", False))
    mlp_bias = bool(hf_config.get("mlp_bias", False))
    return read_config(hf_config, qkv_bias=attention_bias, o_bias=attention_bias, mlp_bias=mlp_bias)
