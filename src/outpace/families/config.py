"""What a decoder-only transformer looks like, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """One row of a family's table of tensors.

    ``role``: what the tensor is for, in the words of the kernels' structs (csrc/pass.h). ``hf``, ``gguf``: its name in
    each file format; ``{}`` is the layer's number. ``sizes``: its shape, rows first, as names of sizes in
    :class:`DecoderConfig`. ``rotary``: its rows are rotated in pairs, so their order in a GGUF file is the family's.
    ``when``: the config.json key that says whether a model has this tensor; None: all models of the family have it.
    """

    role: str
    hf: str
    gguf: str
    sizes: tuple[str, ...]
    rotary: bool = False
    when: str | None = None

    @property
    def layered(self) -> bool:
        """Whether every layer has one."""
        return "{}" in self.hf


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a pre-norm decoder with rotary attention and a gated MLP.

    ``vocab_rows`` counts the embedding's rows, ``vocab_size`` the tokenizer's tokens: rows beyond it are
    padding and are never emitted. ``inv_freq`` holds ``head_dim / 2`` rotary frequencies (radians a
    position), scaling included; cosines and sines are multiplied by ``rope_scale``. Rotary pairs are
    (i, i + head_dim / 2), the Hugging Face order. ``weights``: the tensors that this model has.
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
    rope_scale: float = 1.0
    tied: bool = False
    weights: tuple[Weight, ...] = ()

    @property
    def queries(self) -> int:
        """Values of all query heads of a row."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Values of all key heads of a row; as many as of all value heads."""
        return self.kv_heads * self.head_dim

    def shape(self, weight: Weight) -> tuple[int, ...]:
        """The shape of one tensor of the table, ``[outputs, inputs]``."""
        return tuple(getattr(self, size) for size in weight.sizes)
