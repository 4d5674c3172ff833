"""The decoder's weights and its forward pass in torch: what every family shares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import ModelError
from .config import DecoderConfig
from .linear import Linear

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


class Loadable(Protocol):
    """A tensor that is still in its file; ``load`` raises ModelError when it is not finite."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def load(self, dtype: torch.dtype) -> Tensor: ...


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the decoder needs, the output matrix included even when tied."""
    hidden, wide = config.hidden, config.intermediate
    queries, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_rows, hidden)}
    for layer in range(config.layers):
        block = f"model.layers.{layer}."
        for part, rows, columns, bias in (
            ("self_attn.q_proj", queries, hidden, config.qkv_bias),
            ("self_attn.k_proj", shared, hidden, config.qkv_bias),
            ("self_attn.v_proj", shared, hidden, config.qkv_bias),
            ("self_attn.o_proj", hidden, queries, config.o_bias),
            ("mlp.gate_proj", wide, hidden, config.mlp_bias),
            ("mlp.up_proj", wide, hidden, config.mlp_bias),
            ("mlp.down_proj", hidden, wide, config.mlp_bias),
        ):
            shapes[f"{block}{part}.weight"] = (rows, columns)
            if bias:
                shapes[f"{block}{part}.bias"] = (rows,)
        shapes[f"{block}input_layernorm.weight"] = (hidden,)
        shapes[f"{block}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    shapes[OUTPUT] = (config.vocab_rows, hidden)
    return shapes


def check_tensors(
    config: DecoderConfig, tensors: Mapping[str, Tensor] | Mapping[str, Loadable], source: str
) -> tuple[str, str]:
    """Raise ModelError unless ``tensors`` are exactly those the config calls for, in their right shapes.

    Returns the names of the tensors that serve as embedding and as output matrix. A tied model may store
    either or both; where both are stored, each serves in its own place. ``source`` names the file.
    """
    shapes = expected_tensors(config)
    held = set(tensors)
    either = {EMBEDDING, OUTPUT} & held
    missing = [
        name for name in shapes if name not in held and not (config.tied and either and name in (EMBEDDING, OUTPUT))
    ]
    if missing:
        raise ModelError(f"{source} lacks tensor {_listed(missing)}; is the file complete?")
    surplus = sorted(name for name in held - set(shapes) if not name.endswith("rotary_emb.inv_freq"))
    if surplus:
        raise ModelError(f"{source} holds tensor {_listed(surplus)}, which a {config.family} decoder has no use for")
    for name, shape in shapes.items():
        if name in held and tuple(tensors[name].shape) != shape:
            raise ModelError(f"{source}: tensor {name} has shape {tuple(tensors[name].shape)}, expected {shape}")
    return (EMBEDDING if EMBEDDING in held else OUTPUT), (OUTPUT if OUTPUT in held else EMBEDDING)


def _listed(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


@dataclass
class Block:
    """One layer. Query, key and value share a matrix, as do gate and up: fewer, larger products."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 kv_heads) * head_dim
    o: Linear  # heads * head_dim -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden


@dataclass
class Span:
    """Where one chunk's rows lie in the pass and in the cache, and what they may see."""

    rows: slice
    new_keys: tuple[Tensor, ...]  # a layer: [kv_heads, rows, head_dim], to be written
    new_values: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]  # a layer: [kv_heads, cached + rows, head_dim], to be read
    values: tuple[Tensor, ...]
    mask: Tensor | None  # [rows, cached + rows] additive, in the activations' dtype; None: all is seen


class Decoder:
    """Weights of a pre-norm decoder and its forward pass over packed rows.

    ``dtype`` is that of the weights. Activations, norms, the residual stream and attention are float32
    (float64 for float64 weights): at 16 bits they would add rounding without saving time.
    """

    def __init__(
        self,
        config: DecoderConfig,
        embedding: Tensor,
        blocks: list[Block],
        norm: Tensor,
        head: Linear,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.embedding, self.blocks, self.norm, self.head = config, embedding, blocks, norm, head
        self.dtype = dtype
        self.compute_dtype = torch.float64 if dtype == torch.float64 else torch.float32

    @classmethod
    def from_tensors(
        cls,
        config: DecoderConfig,
        tensors: Mapping[str, Tensor] | Mapping[str, Loadable],
        dtype: torch.dtype = torch.float32,
        source: str = "the model",
    ) -> Decoder:
        """Build from tensors by their Hugging Face names, in memory or still in a file.

        They are converted one at a time, matrices to ``dtype``, norms and biases to the activations' dtype.
        Raises ModelError naming ``source`` and the tensor: missing, surplus, of a wrong shape, not finite.
        """
        embedding_name, output_name = check_tensors(config, tensors, source)
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def get(name: str, kind: torch.dtype) -> Tensor:
            entry = tensors[name]
            if not isinstance(entry, Tensor):
                return entry.load(kind)
            if not torch.isfinite(entry).all():
                raise ModelError(f"{source}: tensor {name} holds NaN or infinite values")
            return entry.detach().to(kind)

        def linear(block: str, parts: tuple[str, ...], bias: bool) -> Linear:
            weights = [get(f"{block}{part}.weight", dtype) for part in parts]
            biases = [get(f"{block}{part}.bias", wide) for part in parts] if bias else []
            return Linear(_joined(weights), _joined(biases) if bias else None)

        def block(layer: int) -> Block:
            at = f"model.layers.{layer}."
            return Block(
                attention_norm=get(f"{at}input_layernorm.weight", wide),
                qkv=linear(f"{at}self_attn.", ("q_proj", "k_proj", "v_proj"), config.qkv_bias),
                o=linear(f"{at}self_attn.", ("o_proj",), config.o_bias),
                mlp_norm=get(f"{at}post_attention_layernorm.weight", wide),
                gate_up=linear(f"{at}mlp.", ("gate_proj", "up_proj"), config.mlp_bias),
                down=linear(f"{at}mlp.", ("down_proj",), config.mlp_bias),
            )

        embedding = get(embedding_name, dtype)
        output = embedding if output_name == embedding_name else get(output_name, dtype)
        if config.tied and torch.equal(output, embedding):
            output = embedding  # stored twice, kept once
        blocks = [block(layer) for layer in range(config.layers)]
        return cls(config, embedding, blocks, get("model.norm.weight", wide), Linear(output, None), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, shared ones counted once."""
        return sum(tensor.nbytes for tensor in {t.data_ptr(): t for t in self._tensors()}.values())

    def _tensors(self) -> Iterator[Tensor]:
        yield from (self.embedding, self.norm, self.head.weight)
        for block in self.blocks:
            yield from (block.attention_norm, block.mlp_norm)
            for linear in (block.qkv, block.o, block.gate_up, block.down):
                yield linear.weight
                if linear.bias is not None:
                    yield linear.bias

    def hidden_states(
        self, tokens: Tensor, positions: Tensor, spans: list[Span], tapped: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all blocks over ``tokens`` ``[n]`` at ``positions`` ``[n]``, writing keys and values.

        Returns the head's input ``[n, hidden]`` (after the last norm) and the residual stream
        ``[n, hidden]`` after each block numbered in ``tapped``.
        """
        config, shape, eps = self.config, (self.config.hidden,), self.config.norm_eps
        cos, sin = rotation(positions, config.inv_freq, self.compute_dtype)
        taps: dict[int, Tensor] = {}
        x = F.embedding(tokens, self.embedding).to(self.compute_dtype)  # [n, hidden]
        for layer, block in enumerate(self.blocks):
            qkv = block.qkv(F.rms_norm(x, shape, block.attention_norm, eps))
            x = x + block.o(attention(qkv, config, cos, sin, spans, layer))
            gate, up = block.gate_up(F.rms_norm(x, shape, block.mlp_norm, eps)).chunk(2, -1)
            x = x + block.down(F.silu(gate) * up)
            if layer in tapped:
                taps[layer] = x
        return F.rms_norm(x, shape, self.norm, eps), taps


def attention(
    qkv: Tensor, config: DecoderConfig, cos: Tensor, sin: Tensor, spans: Sequence[Span], layer: int
) -> Tensor:
    """Rotate queries and keys, store keys and values, attend: ``[n, heads * head_dim]``.

    ``qkv`` ``[n, (heads + 2 kv_heads) * head_dim]`` holds the rows of all spans, ``cos`` and ``sin`` are of their
    positions (:func:`rotation`).
    """
    heads, kv_heads, head_dim, n = config.heads, config.kv_heads, config.head_dim, qkv.shape[0]
    rotated = heads + kv_heads
    qkv = qkv.view(n, rotated + kv_heads, head_dim)
    turned = qkv[:, :rotated]  # [n, heads + kv_heads, head_dim]
    turned = torch.addcmul(turned * cos, turned.roll(head_dim // 2, -1), sin)
    queries = turned[:, :heads].view(n, kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [kv, group, n, dim]
    keys, values = turned[:, heads:].transpose(0, 1), qkv[:, rotated:].transpose(0, 1)  # [kv, n, dim]
    mixed = [attend(queries, keys, values, span, layer) for span in spans]  # each [rows, heads * dim]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def rotation(positions: Tensor, inv_freq: Sequence[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for ``positions`` ``[n]``: each ``[n, 1, 2 * len(inv_freq)]``."""
    half = torch.tensor(inv_freq, dtype=torch.float64)
    sign = torch.cat((-torch.ones_like(half), torch.ones_like(half)))
    angles = positions.double()[:, None, None] * torch.cat((half, half))  # in float64: positions may be large
    return angles.cos().to(dtype), (angles.sin() * sign).to(dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor, span: Span, layer: int) -> Tensor:
    """Store a chunk's new keys and values, then attend over all of its slot: ``[rows, heads * head_dim]``.

    ``queries`` ``[kv_heads, group, n, head_dim]`` and ``keys``, ``values`` ``[kv_heads, n, head_dim]``
    hold the rows of the whole pass. The cache is read back, so that what is attended to is what is kept.
    """
    rows = span.rows
    span.new_keys[layer].copy_(keys[:, rows])
    span.new_values[layer].copy_(values[:, rows])
    own = queries[:, :, rows]
    kv_heads, group, n, head_dim = own.shape
    # The query heads of a group fold into rows, so that each key is read once for all of them.
    mask = None if span.mask is None else span.mask.repeat(group, 1)
    mixed = F.scaled_dot_product_attention(
        own.reshape(1, kv_heads, group * n, head_dim), span.keys[layer][None], span.values[layer][None], mask
    )  # [1, kv_heads, group * n, head_dim]
    return mixed.view(kv_heads, group, n, head_dim).permute(2, 0, 1, 3).reshape(n, -1)


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
