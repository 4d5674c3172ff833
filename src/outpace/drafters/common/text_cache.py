"""What a draft model has read of the texts that it drafts for."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ...core.cache import KVCache
from ...core.prefix_cache import CacheUser, PrefixCache
from ...core.protocols import Runtime, Session
from ...core.types import Chunk

PREFILL_ROWS = 256  # rows a pass; chosen by hand
CATCH_UP_ROWS = 8  # unread tokens that the first drafting step takes along; chosen by hand


class TextCache:
    """Keys and values of a draft: a slot for each session, and the prefixes of ended requests for those that begin
    alike, ``prefix_bytes`` of them at most."""

    def __init__(self, runtime: Runtime, prefix_bytes: int, spare: int = 0) -> None:
        """``spare``: entries of a slot beyond the text."""
        self._runtime, self._spare = runtime, spare
        self.cache: KVCache = runtime.new_cache()
        self._prefix_cache = PrefixCache(self.cache, prefix_bytes)
        self.cache_user = CacheUser(self._prefix_cache, self._entries)

    def _entries(self, tokens: int) -> int:
        return max(1, min(tokens, self._runtime.context)) + self._spare

    def open(self, session: Session) -> int:
        """A slot for the session's whole text, with what the prefix cache has of it."""
        return self._prefix_cache.open(
            session.tokens[:-1], session.request.tenant, self._entries(session.request.limit)
        )

    def read(self, session: Session, slot: int, text: Sequence[int]) -> None:
        """Catch up with ``text``, but for its last few tokens, as far as the slot has room. The report has the time."""
        start = perf_counter()
        text = text[:-CATCH_UP_ROWS][: self.cache.capacity(slot)]
        for first in range(self.cache.length(slot), len(text), PREFILL_ROWS):
            part = text[first : first + PREFILL_ROWS]
            self._runtime.forward([Chunk(slot, part, logits_from=len(part))], self.cache)
        session.report.seconds_draft_prefill += perf_counter() - start

    def close(self, session: Session, slot: int, text: Sequence[int]) -> None:
        """Free the slot; what it holds of ``text`` may be kept."""
        self._prefix_cache.close(slot, text, session.request.tenant)
