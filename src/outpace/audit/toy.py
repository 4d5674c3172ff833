"""A model given as a function of the prefix: small enough to enumerate, real enough to run the loop on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..core.cache import KVCache
from ..core.errors import ContextError
from ..core.types import Array, Capabilities, Chunk, Forward

LogitsOf = Callable[[tuple[int, ...]], Sequence[float] | Array]


class ToyRuntime:
    """A Runtime whose logits are ``logits_of(prefix)``, in ``dtype``.

    It keeps the token ids in the KV cache and reads the prefix back from there, so that a cache that is
    rolled back or compacted wrongly shows in the output. ``forwards`` counts passes. Its features, whatever their
    name, are a row's own logits, ``layer.N`` turned by N places.
    """

    def __init__(
        self, logits_of: LogitsOf, vocab_size: int, context: int = 4096, dtype: npt.DTypeLike = np.float64
    ) -> None:
        self._logits_of, self.vocab_size, self.context, self._dtype = logits_of, vocab_size, context, np.dtype(dtype)
        self.forwards = 0

    def capabilities(self) -> Capabilities:
        return Capabilities(trees=True, dtype=self._dtype.name, row_invariant=True)

    def new_cache(self) -> KVCache:
        return KVCache(layers=1, kv_heads=1, head_dim=1, dtype="float64")

    def forward(self, chunks: Sequence[Chunk], cache: KVCache, want: Sequence[str] = ()) -> Forward:
        self.forwards += 1
        rows = [self._chunk(chunk, cache, bool(want)) for chunk in chunks]  # every row, where features are wanted
        logits = [found[chunk.logits_from :] if want else found for chunk, found in zip(chunks, rows, strict=True)]
        turned = {name: int(name.partition(".")[2] or 0) for name in want}
        return Forward(logits, {name: [np.roll(found, by, axis=-1) for found in rows] for name, by in turned.items()})

    def _chunk(self, chunk: Chunk, cache: KVCache, every_row: bool) -> Array:
        start, rows = cache.length(chunk.slot), len(chunk.tokens)
        cache.require(chunk.slot, rows)
        keys, _ = cache.storage(chunk.slot)
        keys[0, 0, start : start + rows, 0] = chunk.tokens
        cache.advance(chunk.slot, rows)
        cached = tuple(int(token) for token in keys[0, 0, :start, 0])
        parents = range(-1, rows - 1) if chunk.parents is None else chunk.parents
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(chunk.tokens, parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else cached), token))
        if any(len(path) > self.context for path in paths):
            raise ContextError(f"position {max(map(len, paths)) - 1} is beyond the context of {self.context}")
        first = 0 if every_row else chunk.logits_from
        wanted = [np.asarray(self._logits_of(p), dtype=self._dtype) for p in paths[first:]]
        return np.stack(wanted) if wanted else np.empty((0, self.vocab_size), dtype=self._dtype)


def hashed_logits(vocab_size: int, seed: int, sharpness: float = 2.0, order: int | None = None) -> LogitsOf:
    """Pseudo-random logits that depend on the last ``order`` tokens of the prefix (None: on all of it).
    Two toys with the same seed agree wholly; mix them to set how often a draft is right."""

    def logits_of(prefix: tuple[int, ...]) -> Array:
        state = seed & 0x7FFFFFFF
        for token in prefix if order is None else prefix[-order:]:
            state = (state * 1103515245 + token * 12820163 + 12345) & 0x7FFFFFFF
        return sharpness * np.random.default_rng(state).standard_normal(vocab_size)

    return logits_of


def failing_logits(logits_of: LogitsOf, error: type[Exception] | None) -> LogitsOf:
    """A draft that fails behind a token 0, as ``error``, or with NaN where that is None: whether a round's draft fails,
    and how deep, depends on what was drawn."""

    def logits(prefix: tuple[int, ...]) -> Array:
        found = np.asarray(logits_of(prefix))
        if prefix[-1] != 0:
            return found
        if error is not None:
            raise error("fails on purpose behind token 0")
        return np.full_like(found, np.nan)

    return logits


def mixed_logits(target: LogitsOf, other: LogitsOf, share: float) -> LogitsOf:
    """A draft between the target (share 1) and something unrelated (share 0)."""
    return lambda prefix: share * np.asarray(target(prefix)) + (1 - share) * np.asarray(other(prefix))
