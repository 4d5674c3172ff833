"""The prefix cache: what ended requests leave behind for those whose texts begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import Protocol, runtime_checkable

from .cache import KVCache

_SHORTEST = 16  # tokens in common from which a copy is worth making; chosen by hand
_MOST = 256  # entries: each request is compared with all of them (docs/log.md, 2026-11-30)


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens two sequences share."""
    shortest = min(len(one), len(other))
    if one[:shortest] == other[:shortest]:  # the common case: one continues the other
        return shortest
    return next(compress(count(), map(ne, one, other)), shortest)


class PrefixCache:
    """Slots of ended requests, the least recently used given up first. One tenant's never serve another.

    ``most_bytes``: of keys and values that are kept; 0 keeps none.
    """

    def __init__(self, cache: KVCache, most_bytes: int) -> None:
        self.cache, self._most = cache, most_bytes
        self._entries: OrderedDict[int, tuple[str, list[int]]] = OrderedDict()  # by slot: tenant, cached tokens

    @property
    def slots(self) -> int:
        """Slots held for later requests."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of their keys and values."""
        return sum(self.cache.slot_bytes(slot) for slot in self._entries)

    def open(self, text: Sequence[int], tenant: str, capacity: int) -> int:
        """A slot with room for ``capacity`` entries that already holds what an entry has in common with ``text``."""
        best, shared = -1, _SHORTEST - 1
        for slot, (owner, tokens) in self._entries.items():
            if owner == tenant:
                common = min(shared_length(tokens, text), capacity)
                if common > shared:
                    best, shared = slot, common
        if best < 0:
            return self.cache.open(capacity)
        self._entries.move_to_end(best)
        return self.cache.copy(best, shared, capacity)

    def close(self, slot: int, text: Sequence[int], tenant: str) -> None:
        """Take over the slot of a request that ends, whose first entries are those of ``text``; or free it."""
        count = min(len(text), self.cache.length(slot))
        if self._most <= 0 or count < _SHORTEST:
            self.cache.close(slot)
            return
        tokens = list(text[:count])
        for other, (owner, known) in list(self._entries.items()):
            if owner == tenant and known == tokens[: len(known)]:
                self._drop(other)
        self.cache.keep(slot, count, [])
        self._entries[slot] = (tenant, tokens)
        self.shrink(self._most)

    def shrink(self, most_bytes: int) -> None:
        """Give up entries until the rest fits ``most_bytes``."""
        while len(self._entries) > _MOST or (self._entries and self.nbytes > most_bytes):
            self._drop(next(iter(self._entries)))

    def _drop(self, slot: int) -> None:
        del self._entries[slot]
        self.cache.close(slot)


@dataclass(frozen=True)
class CacheUser:
    """What one model's cache takes of the memory for keys and values. ``entries``: how many of them at most a session
    has there whose text, and what is drafted behind it, reaches so many tokens."""

    prefix_cache: PrefixCache
    entries: Callable[[int], int]

    def bytes_for(self, tokens: int) -> int:
        """Bytes that such a session takes, at most."""
        return self.prefix_cache.cache.bytes_for(self.entries(tokens))


@runtime_checkable
class OwnsCaches(Protocol):
    """A drafter that keeps keys and values of its own. They count as the engine's ``kv_bytes``. Where these run out, a
    session may end and begin again with a longer text."""

    def cache_users(self) -> list[CacheUser]: ...


def cache_users_of(drafter: object) -> list[CacheUser]:
    """A drafter's own caches; none where it keeps none."""
    return drafter.cache_users() if isinstance(drafter, OwnsCaches) else []
