"""The decoder's weights and its forward pass in torch: what every family shares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import ModelError
from ..families.config import DecoderConfig
from ..families.table import check_tensors, tensor_names
from .torch_linear import Linear
from .torch_tensors import Loadable, load_tensor


@dataclass
class Block:
    """One layer. Query, key and value share a matrix, as do gate and up: fewer, larger products."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 kv_heads) * head_dim
    o: Linear  # heads * head_dim -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden
    q_norm: Tensor | None  # [head_dim], of each query head before its rotation
    k_norm: Tensor | None  # [head_dim], of each key head


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
                return load_tensor(entry, kind)
            if not torch.isfinite(entry).all():
                raise ModelError(f"{source}: tensor {name} holds NaN or infinite values")
            return entry.detach().to(kind)

        def block(layer: int) -> Block:
            held = tensor_names(config, layer)

            def vector(role: str) -> Tensor | None:
                return get(held[role], wide) if role in held else None

            def linear(*roles: str) -> Linear:
                weights = [get(held[role], dtype) for role in roles]
                biases = [vector(f"{role}_bias") for role in roles]
                if all(bias is None for bias in biases):
                    return Linear(_joined(weights), None)
                rows = zip(biases, weights, strict=True)
                whole = [torch.zeros(len(w), dtype=wide) if bias is None else bias for bias, w in rows]
                return Linear(_joined(weights), _joined(whole))

            return Block(
                attention_norm=get(held["attention_norm"], wide),
                qkv=linear("q", "k", "v"),
                o=linear("o"),
                mlp_norm=get(held["mlp_norm"], wide),
                gate_up=linear("gate", "up"),
                down=linear("down"),
                q_norm=vector("q_norm"),
                k_norm=vector("k_norm"),
            )

        embedding = get(embedding_name, dtype)
        output = embedding if output_name == embedding_name else get(output_name, dtype)
        if config.tied and torch.equal(output, embedding):
            output = embedding  # stored twice, kept once
        blocks = [block(layer) for layer in range(config.layers)]
        return cls(
            config, embedding, blocks, get(tensor_names(config)["final_norm"], wide), Linear(output, None), dtype
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, shared ones counted once."""
        return sum(tensor.nbytes for tensor in {t.data_ptr(): t for t in self._tensors()}.values())

    def _tensors(self) -> Iterator[Tensor]:
        yield from (self.embedding, self.norm, self.head.weight)
        for block in self.blocks:
            norms = (block.attention_norm, block.mlp_norm, block.q_norm, block.k_norm)
            yield from (norm for norm in norms if norm is not None)
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
        cos, sin = rotation(positions, config, self.compute_dtype)
        taps: dict[int, Tensor] = {}
        x = F.embedding(tokens, self.embedding).to(self.compute_dtype)  # [n, hidden]
        for layer, block in enumerate(self.blocks):
            qkv = block.qkv(F.rms_norm(x, shape, block.attention_norm, eps))
            x = x + block.o(attention(qkv, config, cos, sin, spans, layer, block.q_norm, block.k_norm))
            gate, up = block.gate_up(F.rms_norm(x, shape, block.mlp_norm, eps)).chunk(2, -1)
            x = x + block.down(F.silu(gate) * up)
            if layer in tapped:
                taps[layer] = x
        return F.rms_norm(x, shape, self.norm, eps), taps


def attention(
    qkv: Tensor,
    config: DecoderConfig,
    cos: Tensor,
    sin: Tensor,
    spans: Sequence[Span],
    layer: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys, store keys and values, attend: ``[n, heads * head_dim]``.

    ``qkv`` ``[n, (heads + 2 kv_heads) * head_dim]`` holds the rows of all spans, ``cos`` and ``sin`` are of their
    positions (:func:`rotation`). ``q_norm``, ``k_norm`` ``[head_dim]``: of RMSNorms over each head, None where there is
    none.
    """
    heads, kv_heads, head_dim, n = config.heads, config.kv_heads, config.head_dim, qkv.shape[0]
    rotated = heads + kv_heads
    qkv = qkv.view(n, rotated + kv_heads, head_dim)
    turned = qkv[:, :rotated]  # [n, heads + kv_heads, head_dim]
    if q_norm is not None or k_norm is not None:
        parts = zip(turned.split((heads, kv_heads), 1), (q_norm, k_norm), strict=True)
        normed = (p if norm is None else F.rms_norm(p, (head_dim,), norm, config.norm_eps) for p, norm in parts)
        turned = torch.cat(tuple(normed), 1)
    turned = torch.addcmul(turned * cos, turned.roll(head_dim // 2, -1), sin)
    queries = turned[:, :heads].view(n, kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [kv, group, n, dim]
    keys, values = turned[:, heads:].transpose(0, 1), qkv[:, rotated:].transpose(0, 1)  # [kv, n, dim]
    mixed = [attend(queries, keys, values, span, layer) for span in spans]  # each [rows, heads * dim]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def rotation(positions: Tensor, config: DecoderConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for ``positions`` ``[n]``: each ``[n, 1, head_dim]``."""
    half = torch.tensor(config.inv_freq, dtype=torch.float64)
    scale = torch.full_like(half, config.rope_scale)
    angles = positions.double()[:, None, None] * torch.cat((half, half))  # in float64: positions may be large
    return (angles.cos() * config.rope_scale).to(dtype), (angles.sin() * torch.cat((-scale, scale))).to(dtype)


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
