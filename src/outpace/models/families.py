"""Finds a family's file by ``model_type`` and reads what all families share from its config.json."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from ..core.errors import ModelError
from .config import DecoderConfig


@cache
def families() -> dict[str, ModuleType]:
    """Every family file of this room by the ``model_type`` values it names in ``MODEL_TYPES``."""
    import outpace.models as room

    found: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(room.__path__):
        module = import_module(f"{room.__name__}.{info.name}")
        for model_type in getattr(module, "MODEL_TYPES", ()):
            found[model_type] = module
    return found


def decoder_config(hf_config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json describes. Raises ModelError when it is unknown or unsupported."""
    model_type = hf_config.get("model_type")
    known = families()
    if model_type not in known:
        raise ModelError(f"model_type {model_type!r} is not supported; known: {', '.join(sorted(known))}")
    config: DecoderConfig = known[model_type].config(hf_config)
    return config


def read_config(hf_config: Mapping[str, Any], **differs: Any) -> DecoderConfig:
    """The fields that all families name alike; ``differs`` holds the fields where one goes its own way."""

    def need(key: str) -> Any:
        if hf_config.get(key) is None:
            raise ModelError(f"the model's config lacks {key!r}")
        return hf_config[key]

    if hf_config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"hidden_act {hf_config['hidden_act']!r} is not supported; only 'silu' is")
    hidden, heads = int(need("hidden_size")), int(need("num_attention_heads"))
    head_dim = int(hf_config.get("head_dim") or hidden // heads)
    kv_heads = int(hf_config.get("num_key_value_heads") or heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(f"{heads} heads of {head_dim} cannot share {kv_heads} key-value heads with rotary pairs")
    vocab_rows = int(need("vocab_size"))
    fields: dict[str, Any] = {
        "family": need("model_type"),
        "hidden": hidden,
        "layers": int(need("num_hidden_layers")),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate": int(need("intermediate_size")),
        "vocab_rows": vocab_rows,
        "vocab_size": vocab_rows,
        "context": int(need("max_position_embeddings")),
        "norm_eps": float(need("rms_norm_eps")),
        "inv_freq": rotary_frequencies(hf_config, head_dim),
        "tied": bool(hf_config.get("tie_word_embeddings", False)),
    }
    return DecoderConfig(**(fields | differs))


def rotary_frequencies(hf_config: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    """``head_dim / 2`` rotary frequencies in radians a position, scaled as the config says.

    Reads ``rope_theta`` and ``rope_scaling`` (or ``rope_parameters``, which holds both). Scalings: none,
    ``linear`` and ``llama3``; ModelError for any other, since ignoring one gives wrong text silently.
    """
    scaling: Mapping[str, Any] = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or hf_config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if float(hf_config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("partial_rotary_factor other than 1 is not supported")
    plain = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    try:
        if kind == "default":
            return tuple(plain)
        if kind == "linear":
            return tuple(f / float(scaling["factor"]) for f in plain)
        if kind == "factors":  # rope_freqs.weight of a GGUF file
            return tuple(f / float(divisor) for f, divisor in zip(plain, scaling["factors"], strict=True))
        if kind == "llama3":
            return tuple(_llama3(f, scaling) for f in plain)
    except KeyError as missing:
        raise ModelError(f"rope_scaling {kind!r} lacks {missing}") from None
    raise ModelError(f"rope_scaling {kind!r} is not supported; known: default, linear, llama3")


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Llama 3.1's scaling: slow frequencies are divided by ``factor``, fast ones kept, with a ramp between."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return kept * frequency + (1 - kept) * frequency / float(scaling["factor"])
