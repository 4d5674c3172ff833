"""Cached beginnings: what ended requests leave behind for those that begin alike."""

from __future__ import annotations

from collections import OrderedDict

from ..core.cache import KVCache
from ..core.protocols import Session
from ..sampling.penalties import shared_length

_SHORTEST = 16  # tokens in common from which a copy is worth making


class Prefixes:
    """Slots of ended sessions, the least recently used given up first. One tenant's never serve another."""

    def __init__(self, cache: KVCache, most_bytes: int) -> None:
        self._cache, self._most = cache, most_bytes
        self._entries: OrderedDict[int, tuple[str, list[int]]] = OrderedDict()  # by slot: tenant, cached tokens

    @property
    def slots(self) -> int:
        """Slots held for later requests."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of their keys and values."""
        return sum(self._cache.slot_bytes(slot) for slot in self._entries)

    def open(self, session: Session) -> int:
        """A slot for the session that already holds what an entry has in common with its prompt."""
        capacity = max(1, session.limit)
        best, shared, prompt = -1, _SHORTEST - 1, session.tokens[:-1]
        for slot, (tenant, tokens) in self._entries.items():
            if tenant == session.tenant:
                common = shared_length(tokens, prompt)
                if common > shared:
                    best, shared = slot, common
        if best < 0:
            return self._cache.open(capacity)
        self._entries.move_to_end(best)
        session.report.prompt_cached = shared
        return self._cache.copy(best, shared, capacity)

    def close(self, session: Session) -> None:
        """Take over the slot of a session that ends, or free it."""
        slot = session.slot
        tokens = session.tokens[: self._cache.length(slot)]
        if self._most <= 0 or len(tokens) < _SHORTEST or session.error is not None:
            self._cache.close(slot)
            return
        for other, (tenant, known) in list(self._entries.items()):
            if tenant == session.tenant and known == tokens[: len(known)]:
                self._drop(other)
        # A copy, because the session's slot has room for all that it might have said.
        self._entries[self._cache.copy(slot, len(tokens), len(tokens))] = (session.tenant, tokens)
        self._cache.close(slot)
        self.shrink(self._most)

    def shrink(self, most_bytes: int) -> None:
        """Give up entries until the rest fits ``most_bytes``."""
        while self._entries and self.nbytes > most_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, slot: int) -> None:
        del self._entries[slot]
        self._cache.close(slot)
