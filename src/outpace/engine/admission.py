"""Who holds keys and values, and who waits for them: first come, first served, within one budget.

Counted are the target's cache and those of all drafters, what running requests may write in the next round, what is
scored, and the prefix caches. A request is admitted when its text so far fits, not all that it may still generate.
When the running ones outgrow the budget, prefix caches shrink first; then the request that came last gives its memory
up, waits at the head of the queue, and repeats its prefill later. Its randomness is keyed by position and its rows
depend on nothing else in a pass, so it goes on with the tokens that it would have had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import ContextError
from ..core.prefix_cache import CacheUser
from .loop import Loop
from .open_request import OpenRequest


@dataclass(eq=False)
class Claim:
    """Memory for a text that is only scored, held from the moment that ``slot`` is known until it is dropped."""

    entries: int
    slot: int = -1
    error: Exception | None = None  # why there is no slot and never will be


class Admission:
    """The queue, and what those who left it hold. ``cache_users``: every cache that counts; ``most_bytes``: of all of
    them together, None for no limit; ``prefix_bytes``: of that, for prefix caches. Not safe for several threads at
    once: see Engine."""

    def __init__(
        self, loop: Loop, cache_users: Sequence[CacheUser], max_batch: int, most_bytes: int | None, prefix_bytes: int
    ) -> None:
        self._loop, self.cache_users, self._max_batch = loop, cache_users, max_batch
        self.most_bytes, self._prefix_bytes = most_bytes, prefix_bytes
        self.waiting: deque[OpenRequest | Claim] = deque()
        self.running: dict[int, OpenRequest] = {}  # by session id, those that came first before the others
        self._claims: list[Claim] = []

    @property
    def held(self) -> int:
        """Bytes taken in all caches, prefix caches included."""
        return sum(user.prefix_cache.cache.nbytes for user in self.cache_users)

    @property
    def busy(self) -> bool:
        """Whether somebody still waits for an answer, or for the scores of a text."""
        everyone = (*self.running.values(), *self.waiting)
        return bool(self._claims) or any(isinstance(one, Claim) or not one.cancelled for one in everyone)

    def check(self, need: int, tokens: int) -> None:
        """Raise ContextError where so many bytes, for so many tokens, could never be had."""
        if self.most_bytes is not None and need > self.most_bytes:
            raise ContextError(
                f"{tokens} tokens need {need / (1 << 20):.1f} MiB of keys and values, and "
                f"{self.most_bytes / (1 << 20):.1f} MiB are allowed: ask for fewer tokens, or allow more memory"
            )

    def join(self) -> None:
        """Admit those that wait, as far as there is room. What is only scored needs no place in the batch."""
        for one in list(self.waiting):
            if isinstance(one, OpenRequest) and len(self.running) >= self._max_batch:
                continue
            if not self._make_room(one.need(_next(one)) if isinstance(one, OpenRequest) else self._bytes_of(one)):
                break
            self.waiting.remove(one)
            if isinstance(one, OpenRequest):
                self._admit(one)
            else:
                self._grant(one)

    def prepare_round(self) -> None:
        """Make room for what the next round may write."""
        while not self._make_room(0) and self.running:
            last = next(reversed(self.running.values()))
            try:
                self._loop.release(last.session)
            except BaseException as error:
                fail(last, error)
                raise
            del self.running[last.session.id]
            self.waiting.appendleft(last)

    def release(self, opened: OpenRequest) -> None:
        """Free what a request holds that runs no more."""
        del self.running[opened.session.id]
        self._loop.release(opened.session)
        self._make_room(0)

    def withdrawn(self) -> list[OpenRequest]:
        """Take those who were cancelled out of the queue."""
        # A copy first: other threads may be joining it.
        gone = [one for one in list(self.waiting) if isinstance(one, OpenRequest) and one.cancelled]
        for one in gone:
            self.waiting.remove(one)
        return gone

    def claim(self, entries: int) -> Claim:
        """Queue for a slot of so many entries of the target's. Raises ContextError where it could never be had."""
        one = Claim(entries)
        self.check(self._bytes_of(one), entries)
        self.waiting.append(one)
        return one

    def drop(self, claim: Claim) -> None:
        """Give a claim up, whether it waits or holds a slot."""
        if claim in self._claims:
            self._claims.remove(claim)
            self._loop.cache.close(claim.slot)
        elif claim in self.waiting:
            self.waiting.remove(claim)

    def _admit(self, opened: OpenRequest) -> None:
        session, report = opened.session, opened.session.report
        cached = report.prompt_cached
        self.running[session.id] = opened
        try:
            self._loop.admit([session])
        except BaseException as error:  # only this one ends; the engine frees it with the others that have
            fail(opened, error)
            if not isinstance(error, Exception):
                raise
        if opened.admitted:  # what its new prefill finds cached was its own
            report.prompt_cached = cached
        opened.admitted = True

    def _grant(self, claim: Claim) -> None:
        try:
            claim.slot = self._loop.cache.open(claim.entries)
            self._claims.append(claim)
        except BaseException as error:
            claim.error = _told(error)
            if not isinstance(error, Exception):
                raise

    def _make_room(self, more: int) -> bool:
        """Whether ``more`` bytes fit beside what is promised; prefix caches give up entries for them."""
        left = self._prefix_bytes
        if self.most_bytes is not None:
            promised = sum(one.need(_next(one)) for one in self.running.values())
            free = self.most_bytes - promised - sum(map(self._bytes_of, self._claims)) - more
            if free < 0:
                return False
            left = min(left, free)
        kept = sum(user.prefix_cache.nbytes for user in self.cache_users)
        if kept > left:
            for user in self.cache_users:  # in proportion, so that target and draft know the same texts
                user.prefix_cache.shrink(user.prefix_cache.nbytes * left // kept)
        return True

    def _bytes_of(self, claim: Claim) -> int:
        return self._loop.cache.bytes_for(claim.entries)


def fail(opened: OpenRequest, error: BaseException) -> None:
    """End a request with what went wrong."""
    opened.session.finish, opened.session.error = "error", _told(error)


def _told(error: BaseException) -> Exception:
    """What those are told who did not cause it: an interrupt was meant for whoever stepped."""
    return error if isinstance(error, Exception) else InterruptedError("interrupted")


def _next(opened: OpenRequest) -> int:
    """Tokens that the request's text, and what is drafted behind it, may reach in its next round."""
    return len(opened.session.tokens) + opened.reach
