"""The torch runtime: packed rows of many sessions through a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.cache import KVCache
from ..core.fork import check_process
from ..core.types import Capabilities, Chunk, Forward
from .chunks import check_chunks, check_features
from .torch_decoder import Decoder, Span
from .torch_linear import Linear
from .torch_tensors import NAMES, TensorRows


class TorchRuntime:
    """Runs a :class:`Decoder` through torch's ordinary kernels (the Runtime protocol)."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.vocab_size = decoder.config.vocab_size
        self.context, self.layers = decoder.config.context, decoder.config.layers
        self._features = {"hidden": -1} | {f"layer.{i}": i for i in range(decoder.config.layers)}
        self._cache_layers: Sequence[int] = range(decoder.config.layers)

    def with_layers(self, layers: Sequence[int], head: int = 0) -> TorchRuntime:
        """A runtime over some of the layers: see :meth:`outpace.runtimes.native.NativeRuntime.with_layers`."""
        whole = self.decoder
        blocks = [whole.blocks[layer] for layer in layers]
        output = Linear(whole.head.weight[: head or self.vocab_size], whole.head.bias)
        part = TorchRuntime(Decoder(whole.config, whole.embedding, blocks, whole.norm, output, whole.dtype))
        part._features, part._cache_layers = {"hidden": -1}, tuple(layers)
        return part

    @property
    def threads(self) -> int:
        """Threads that a pass computes with."""
        return torch.get_num_threads()

    def capabilities(self) -> Capabilities:
        """Trees. Not row-invariant: torch picks kernels by the number of rows."""
        return Capabilities(True, NAMES[self.decoder.dtype], False, frozenset(self._features))

    def new_cache(self) -> KVCache:
        """An empty cache for this model, in the dtype of its activations."""
        config = self.decoder.config
        return KVCache(config.layers, config.kv_heads, config.head_dim, NAMES[self.decoder.compute_dtype])

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk], cache: KVCache, want: Sequence[str] = ()) -> Forward:
        """One pass over all rows of all chunks (see the Runtime protocol).

        Features: ``hidden`` ``[rows, hidden]``, the head's input; ``layer.N``, the residual stream after
        block N. Everything is checked before anything is written: ParameterError for a token id, parent or
        feature that does not exist, ContextError beyond the model's context, CacheError without room.
        """
        check_process()
        check_features(want, self._features)
        depths = check_chunks(chunks, cache, self.vocab_size, self.context)
        if not chunks:
            return Forward([], {name: [] for name in want})
        spans: list[Span] = []
        first = 0
        positions: list[int] = []
        for chunk, depth in zip(chunks, depths, strict=True):
            length = cache.length(chunk.slot)
            spans.append(self._span(chunk, first, cache))
            positions += [length + d for d in depth]
            first += len(chunk.tokens)
        tokens = torch.tensor([token for chunk in chunks for token in chunk.tokens])
        tapped = {self._features[name] for name in want}
        hidden, taps = self.decoder.hidden_states(tokens, torch.tensor(positions), spans, tapped)
        taps[-1] = hidden
        logits = self._logits(hidden, chunks, spans)
        for chunk in chunks:
            cache.advance(chunk.slot, len(chunk.tokens))
        features = {name: [TensorRows(taps[self._features[name]][span.rows]) for span in spans] for name in want}
        return Forward([TensorRows(rows) for rows in logits], features)

    def _span(self, chunk: Chunk, first: int, cache: KVCache) -> Span:
        length, n = cache.length(chunk.slot), len(chunk.tokens)
        keys, values = (
            torch.from_numpy(part) for part in cache.storage(chunk.slot)
        )  # [layers, kv_heads, capacity, head_dim]
        end = length + n
        return Span(
            rows=slice(first, first + n),
            new_keys=tuple(keys[layer, :, length:end] for layer in self._cache_layers),
            new_values=tuple(values[layer, :, length:end] for layer in self._cache_layers),
            keys=tuple(keys[layer, :, :end] for layer in self._cache_layers),
            values=tuple(values[layer, :, :end] for layer in self._cache_layers),
            mask=attention_mask(chunk.parents, length, n, self.decoder.compute_dtype),
        )

    def _logits(self, hidden: Tensor, chunks: Sequence[Chunk], spans: list[Span]) -> list[Tensor]:
        """``[wanted, vocab_size]`` a chunk: the output matrix is applied once, to the rows wanted only."""
        wanted = [hidden[span.rows][chunk.logits_from :] for chunk, span in zip(chunks, spans, strict=True)]
        counts = [rows.shape[0] for rows in wanted]
        packed = wanted[0] if len(wanted) == 1 else torch.cat(wanted)
        if not packed.shape[0]:
            return [hidden.new_empty(0, self.vocab_size) for _ in chunks]
        logits = self.decoder.head(packed)[:, : self.vocab_size]  # rows beyond the vocabulary are padding
        if logits.shape[1] < self.vocab_size:  # a pruned head
            logits = F.pad(logits, (0, self.vocab_size - logits.shape[1]), value=float("-inf"))
        return list(logits.split(counts))


def attention_mask(parents: Sequence[int] | None, cached: int, rows: int, dtype: torch.dtype) -> Tensor | None:
    """``[rows, cached + rows]``: 0 where a row may look (cached entries, its ancestors, itself), else -inf.

    None when every row may look everywhere, as a single row may.
    """
    if rows == 1:
        return None
    hidden = torch.full((rows, rows), float("-inf"), dtype=dtype)
    if parents is None:
        own = hidden.triu(1)
    else:
        own = hidden
        for row, parent in enumerate(parents):
            if parent >= 0:
                own[row] = own[parent]
            own[row, row] = 0
    return torch.cat((torch.zeros(rows, cached, dtype=dtype), own), 1)
