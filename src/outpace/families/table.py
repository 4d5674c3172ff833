"""The tensors that a decoder can have: one row for each that the decoder in torch and the kernels know how to use.

A family's table is made of these rows (families.py). Whatever opens, checks, converts or loads tensors reads the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from ..core.errors import ModelError
from .config import DecoderConfig, Weight


class Shaped(Protocol):
    """A tensor in memory or in its file; one in a file has a ``stored_name`` too."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def _rows() -> Iterator[Weight]:
    yield Weight("embedding", "model.embed_tokens.weight", "token_embd.weight", ("vocab_rows", "hidden"))
    for role, hf, gguf, rows, columns in (
        ("q", "self_attn.q_proj", "attn_q", "queries", "hidden"),
        ("k", "self_attn.k_proj", "attn_k", "keys", "hidden"),
        ("v", "self_attn.v_proj", "attn_v", "keys", "hidden"),
        ("o", "self_attn.o_proj", "attn_output", "hidden", "queries"),
        ("gate", "mlp.gate_proj", "ffn_gate", "intermediate", "hidden"),
        ("up", "mlp.up_proj", "ffn_up", "intermediate", "hidden"),
        ("down", "mlp.down_proj", "ffn_down", "hidden", "intermediate"),
    ):
        hf, gguf, rotary = f"model.layers.{{}}.{hf}", f"blk.{{}}.{gguf}", role in ("q", "k")
        yield Weight(role, f"{hf}.weight", f"{gguf}.weight", (rows, columns), rotary)
        yield Weight(f"{role}_bias", f"{hf}.bias", f"{gguf}.bias", (rows,), rotary)
    for role, hf, gguf, size in (
        ("attention_norm", "input_layernorm", "attn_norm", "hidden"),
        ("mlp_norm", "post_attention_layernorm", "ffn_norm", "hidden"),
        ("q_norm", "self_attn.q_norm", "attn_q_norm", "head_dim"),  # of each head, before its rotation
        ("k_norm", "self_attn.k_norm", "attn_k_norm", "head_dim"),
    ):
        names = f"model.layers.{{}}.{hf}.weight", f"blk.{{}}.{gguf}.weight"
        yield Weight(role, *names, (size,), rotary=size == "head_dim")
    yield Weight("final_norm", "model.norm.weight", "output_norm.weight", ("hidden",))
    yield Weight("head", "lm_head.weight", "output.weight", ("vocab_rows", "hidden"))


KNOWN = {weight.role: weight for weight in _rows()}
_OPTIONAL = {"q_norm", "k_norm", *(role for role in KNOWN if role.endswith("_bias"))}
DECODER = tuple(weight for role, weight in KNOWN.items() if role not in _OPTIONAL)  # what no decoder is without


def known(*roles: str, when: str | None = None) -> tuple[Weight, ...]:
    """The rows of these roles, for a family's table; ``when`` as in :class:`Weight`."""
    return tuple(replace(KNOWN[role], when=when) for role in roles)


def numbered(name: str) -> tuple[str, str]:
    """A tensor's name as a table has it, and its layer's number: "blk.{}.attn_q.weight", "3"."""
    found = re.search(r"\.([0-9]+)\.", name)
    return (name, "") if found is None else (f"{name[: found.start()]}.{{}}.{name[found.end() :]}", found[1])


def tensor_names(config: DecoderConfig, layer: int | None = None) -> dict[str, str]:
    """Hugging Face's names by role: of one layer's tensors, or of those outside of the layers."""
    rows = (weight for weight in config.weights if weight.layered == (layer is not None))
    return {weight.role: weight.hf.format(layer) for weight in rows}


def _expected(config: DecoderConfig) -> Iterator[tuple[Weight, int | None]]:
    for weight in config.weights:
        for layer in range(config.layers) if weight.layered else (None,):
            yield weight, layer


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name and shape of every tensor the decoder needs, the output matrix included even when tied."""
    return {weight.hf.format(layer): config.shape(weight) for weight, layer in _expected(config)}


def check_tensors(
    config: DecoderConfig, tensors: Mapping[str, Shaped], source: str, *, gguf: bool = False
) -> tuple[str, str]:
    """Raise ModelError unless ``tensors`` are exactly those the config calls for, in their right shapes.

    ``tensors`` have Hugging Face names. Returns the names of those that serve as embedding and as output matrix. A tied
    model may store either or both; where both are stored, each serves in its own place. ``source`` names the file, and
    a tensor is named as the file names it; ``gguf`` says that this is a GGUF file.
    """
    outer = tensor_names(config)
    embedding, output = outer["embedding"], outer["head"]
    either = {embedding, output} & tensors.keys()
    surplus = dict(tensors)
    missing = []
    for weight, layer in _expected(config):
        name, shape = weight.hf.format(layer), config.shape(weight)
        tensor = surplus.pop(name, None)
        if tensor is None:
            if not (config.tied and either and name in (embedding, output)):
                missing.append((weight.gguf if gguf else weight.hf).format(layer))
        elif tuple(tensor.shape) != shape:
            called = _called(tensor, name)
            raise ModelError(f"{source}: tensor {called} has shape {tuple(tensor.shape)}, expected {shape}")
    if missing:
        raise ModelError(f"{source} lacks tensor {_listed(missing)}; is the file complete?")
    left = sorted(_called(t, name) for name, t in surplus.items() if not name.endswith("rotary_emb.inv_freq"))
    if left:
        raise ModelError(f"{source} holds tensor {_listed(left)}, which a {config.family} decoder has no use for")
    return (embedding if embedding in tensors else output), (output if output in tensors else embedding)


def _called(tensor: Shaped, name: str) -> str:
    return getattr(tensor, "stored_name", name)


def _listed(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
