"""Qwen2 and Qwen2.5: biases on query, key and value only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import ModelError
from .config import DecoderConfig
from .families import read_config

MODEL_TYPES = ("qwen2",)


def config(hf_config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Qwen2 config.json describes."""
    if hf_config.get("use_sliding_window"):
        raise ModelError("sliding-window attention (use_sliding_window) is not supported for qwen2")
    return read_config(hf_config, qkv_bias=True)
