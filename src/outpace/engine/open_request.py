"""One request from the moment that it is queued until its result is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.prefix_cache import CacheUser
from ..core.protocols import Session
from ..sampling.logprobs import LogprobLog
from .text_state import TextState


@dataclass(eq=False)
class OpenRequest:
    """A session, and what decides where its text ends.

    ``ends``: tokens that end the answer. ``cache_users``: whose memory it takes: the target's, and those of drafters
    with a cache of their own. ``reach``: tokens that a round may write behind the text, at most. ``shown``: generated
    tokens that events have told of. ``admitted``: it has held memory, now or before. ``cancelled``: its end was asked
    for. ``ended``: it holds nothing any more."""

    session: Session
    text: TextState
    ends: frozenset[int]
    logprobs: LogprobLog | None
    cache_users: Sequence[CacheUser]
    reach: int
    shown: int = 0
    admitted: bool = False
    cancelled: bool = False
    ended: bool = False

    def need(self, tokens: int) -> int:
        """Bytes of keys and values that it takes, at most, when its text reaches so many tokens."""
        return sum(user.bytes_for(min(self.session.request.limit, tokens)) for user in self.cache_users)
