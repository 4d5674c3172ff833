"""What tells one family of models from another, and what its config.json says about one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import ModelError
from ..core.registry import Registry
from .config import DecoderConfig, Weight
from .rope import rotary_frequencies
from .settings import ACTIVATIONS, Settings, speaks_of_arithmetic
from .table import DECODER, KNOWN


@dataclass(frozen=True)
class Family:
    """One family: a decoder with pre-norm RMSNorm, rotary attention over whole heads and an MLP gated by SiLU.

    ``model_type``: its name in config.json. ``gguf``: its ``general.architecture`` in GGUF files, and
    ``gguf_pairs``: which two values of a head these files rotate together. "halves": i and i + head_dim / 2, as Hugging
    Face does (NEOX in ggml); "neighbours": 2 i and 2 i + 1 (NORM in ggml). ``tensors``: its table, of rows that
    table.py knows; a row that is called otherwise in its files is changed with ``dataclasses.replace``. Raises
    ValueError for a table that the decoder cannot run.
    """

    model_type: str
    gguf: str
    gguf_pairs: Literal["halves", "neighbours"]
    tensors: tuple[Weight, ...]

    def __post_init__(self) -> None:
        roles = [weight.role for weight in self.tensors]
        unknown, missing = set(roles) - KNOWN.keys(), {weight.role for weight in DECODER} - set(roles)
        if unknown or missing or len(roles) != len(set(roles)):
            raise ValueError(f"{self.model_type}: roles unknown {unknown}, missing {missing}, or twice in {roles}")


def _lacks(name: str, module: object) -> list[str]:
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family):
        return ["a FAMILY"]
    return [] if family.model_type == name else [f"a FAMILY whose model_type is {name!r}, not {family.model_type!r}"]


_SHARED = frozenset({"config", "family", "rope", "settings", "table"})
_REGISTRY = Registry("family", "model_type", "outpace.families", _SHARED, "outpace.families", _lacks)
broken = _REGISTRY.broken


def families() -> dict[str, Family]:
    """Every family, by its ``model_type``: the files of this room that have a ``FAMILY``, and the modules that other
    packages register as entry points of the group ``outpace.families``, named like their ``model_type``."""
    return {name: _REGISTRY.module(name).FAMILY for name in _REGISTRY.names()}  # type: ignore[attr-defined]


def decoder_config(hf_config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json describes. Raises ModelError when it is unknown or unsupported, and for a key that
    changes the arithmetic and that this family does not read."""
    model_type = hf_config.get("model_type")
    known = families()
    if model_type not in known:
        why = broken().get(str(model_type)) or f"known: {', '.join(sorted(known))}"
        raise ModelError(f"model_type {model_type!r} is not supported; {why}")
    settings = Settings(hf_config)
    weights = known[model_type].tensors
    config = read_config(settings, tuple(w for w in weights if w.when is None or settings.get(w.when)))
    settings.refuse_unread(speaks_of_arithmetic)
    return config


def read_config(hf_config: Mapping[str, Any], weights: tuple[Weight, ...] = ()) -> DecoderConfig:
    """The keys that all families share, for a decoder with these tensors."""

    def need(key: str) -> Any:
        if hf_config.get(key) is None:
            raise ModelError(f"the model's config lacks {key!r}")
        return hf_config[key]

    if hf_config.get("hidden_act", "silu") not in ACTIVATIONS:
        raise ModelError(f"hidden_act {hf_config['hidden_act']!r} is not supported; only 'silu' is")
    hidden, heads = int(need("hidden_size")), int(need("num_attention_heads"))
    head_dim = int(hf_config.get("head_dim") or hidden // heads)
    kv_heads = int(hf_config.get("num_key_value_heads") or heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(f"{heads} heads of {head_dim} cannot share {kv_heads} key-value heads with rotary pairs")
    vocab_rows, context = int(need("vocab_size")), int(need("max_position_embeddings"))
    _refuse_sliding_window(hf_config, context)
    inv_freq, rope_scale = rotary_frequencies(hf_config, head_dim)
    return DecoderConfig(
        family=need("model_type"),
        hidden=hidden,
        layers=int(need("num_hidden_layers")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=int(need("intermediate_size")),
        vocab_rows=vocab_rows,
        vocab_size=vocab_rows,
        context=context,
        norm_eps=float(need("rms_norm_eps")),
        inv_freq=inv_freq,
        rope_scale=rope_scale,
        tied=bool(hf_config.get("tie_word_embeddings", False)),
        weights=weights,
    )


def _refuse_sliding_window(hf_config: Mapping[str, Any], context: int) -> None:
    """A window as long as the context hides nothing; ``use_sliding_window`` may say that there is none."""
    window, used = hf_config.get("sliding_window"), hf_config.get("use_sliding_window")
    if (used or (used is None and window)) and (window is None or int(window) < context):
        said = f"use_sliding_window {used!r}, sliding_window {window!r}"
        raise ModelError(f"sliding-window attention is not supported ({said}, for a context of {context})")
