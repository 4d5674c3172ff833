"""One request in flight, as its reader sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.prefix_cache import CacheUser
from ..core.protocols import Session
from ..core.report import Report
from ..sampling.logprobs import LogprobLog, TokenLogprobs
from .text_state import TextState

if TYPE_CHECKING:
    from .engine import Engine


@dataclass(frozen=True)
class Result:
    """One answer. ``token_ids`` are the tokens that ``text`` needs; an end token is among them, and so is
    the token that straddles a stop string. ``origins`` says of each where it came from: the drafter whose
    guess stood, or "correction", "bonus" or "plain". ``logprobs``: of each, when asked for.
    ``finish_reason``: "stop", "length", "cancelled" or "error"."""

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    report: Report
    origins: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class Event:
    """What was added to a stream: text that is certain, and the tokens it came from."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    origins: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None


@dataclass(eq=False)
class Answer:
    """A session, and what decides where its text ends."""

    session: Session
    text: TextState
    ends: frozenset[int]
    logprobs: LogprobLog | None
    cache_users: Sequence[
        CacheUser
    ]  # whose memory it takes: the target's, and those of drafters with a cache of their own
    reach: int  # tokens that a round may write behind the text, at most
    shown: int = 0  # generated tokens that events have told of
    admitted: bool = False  # it has held memory, now or before
    cancelled: bool = False  # its end was asked for
    ended: bool = False  # it holds nothing any more

    def need(self, tokens: int) -> int:
        """Bytes of keys and values that it takes, at most, when its text reaches so many tokens."""
        return sum(share.bytes_for(min(self.session.request.limit, tokens)) for share in self.cache_users)


class Stream:
    """One request in flight. Iterating makes rounds, for every request that is open, until this one has
    something new; the last event has a finish reason, and ``result`` is there with it. :meth:`poll` only looks."""

    def __init__(self, engine: Engine, answer: Answer) -> None:
        self._engine, self._answer = engine, answer
        self.result: Result | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            while self.result is None:
                with self._engine._lock:
                    event = self.poll()
                    if event is not None:
                        return event
                    self._engine.step()
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def poll(self) -> Event | None:
        """What is new since the last event, or None. Raises what ended the request when that was an error."""
        if self.result is not None:
            return None
        with self._engine._lock:
            answer, session = self._answer, self._answer.session
            if session.error is not None or not answer.ended:
                event = event_of(answer, None)
                if event is None and session.error is not None:
                    raise session.error
                return event
            self.result = self._engine._finish(answer)
            return event_of(answer, self.result.finish_reason)

    @property
    def ended(self) -> bool:
        """Whether nothing more is generated: the next :meth:`poll` brings the last event, or raises."""
        return self._answer.ended

    @property
    def report(self) -> Report:
        """What the request has cost so far."""
        return self._answer.session.report

    def cancel(self) -> None:
        """Ask for the end, without waiting: the engine frees what the request holds before its next round."""
        self._answer.cancelled = True

    def close(self) -> None:
        """Stop generating and free what the request held. ``result`` is what was generated until then, with
        finish reason "cancelled" unless it had ended otherwise."""
        self.cancel()
        if self.result is None:
            with self._engine._lock:
                self._engine._reap()
                self.result = self._engine._finish(self._answer)

    def __del__(self) -> None:
        self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def event_of(answer: Answer, finish: str | None) -> Event | None:
    piece, count = answer.text.take(final=finish is not None)
    if not piece and not count and finish is None:
        return None
    session, start = answer.session, answer.shown
    answer.shown = end = start + count
    tokens = session.tokens[session.request.prompt_length + start : session.request.prompt_length + end]
    logprobs = None if answer.logprobs is None else answer.logprobs.between(start, end)
    return Event(piece, tokens, finish, session.origins[start:end], logprobs)
