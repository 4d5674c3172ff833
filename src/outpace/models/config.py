"""What a decoder-only transformer looks like, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a pre-norm decoder with rotary attention and a gated MLP.

    ``vocab_rows`` counts the embedding's rows, ``vocab_size`` the tokenizer's tokens: rows beyond it are
    padding and are never emitted. ``inv_freq`` holds ``head_dim / 2`` rotary frequencies (radians a
    position), scaling included. Rotary pairs are (i, i + head_dim / 2), the Hugging Face order.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_rows: int
    vocab_size: int
    context: int
    norm_eps: float
    inv_freq: tuple[float, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
