"""What every runtime asks of the chunks it is given, before it writes anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core.cache import KVCache
from ..core.errors import CacheError, ContextError, ParameterError
from ..core.types import Chunk


def check_chunks(chunks: Sequence[Chunk], cache: KVCache, vocab_size: int, context: int) -> list[list[int]]:
    """The depth of every row below its slot's last cached entry (0 for its children), a list a chunk.

    Raises ParameterError for a token id or parent that does not exist, ContextError beyond the model's
    context, CacheError without room or for a slot named twice.
    """
    if len({chunk.slot for chunk in chunks}) != len(chunks):
        raise CacheError("a slot appears twice in one pass")
    return [_depths(chunk, cache, vocab_size, context) for chunk in chunks]


def check_features(want: Sequence[str], known: Collection[str]) -> None:
    """Raise ParameterError for a feature that the runtime does not have."""
    unknown = [name for name in want if name not in known]
    if unknown:
        raise ParameterError(f"feature {unknown[0]!r} is unknown; this model has hidden and layer.0 to layer.N")


def _depths(chunk: Chunk, cache: KVCache, vocab_size: int, context: int) -> list[int]:
    if not chunk.tokens:
        raise ParameterError("a chunk needs at least one token")
    for token in (min(chunk.tokens), max(chunk.tokens)):
        if not 0 <= token < vocab_size:
            raise ParameterError(f"token {token} is outside the vocabulary of {vocab_size}")
    if chunk.logits_from < 0:
        raise ParameterError(f"logits_from must be at least 0, not {chunk.logits_from}")
    if chunk.parents is None:
        depths = list(range(len(chunk.tokens)))
    else:
        if len(chunk.parents) != len(chunk.tokens):
            raise ParameterError(f"{len(chunk.tokens)} tokens but {len(chunk.parents)} parents")
        depths = []
        for row, parent in enumerate(chunk.parents):
            if not -1 <= parent < row:
                raise ParameterError(f"row {row} has parent {parent}; a parent must come before its child")
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
    deepest = cache.length(chunk.slot) + max(depths) + 1
    if deepest > context:
        raise ContextError(f"{deepest} tokens do not fit the model's context of {context}")
    cache.require(chunk.slot, len(chunk.tokens))
    return depths
