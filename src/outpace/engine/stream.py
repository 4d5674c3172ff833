"""One request in flight, as its reader sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core.report import NOT_DRAFTED, Report
from ..sampling.logprobs import TokenLogprobs
from .open_request import OpenRequest
from .scheduler import Scheduler


@dataclass(frozen=True)
class Result:
    """One answer. ``token_ids`` are the tokens that ``text`` needs; an end token is among them, and so is
    the token that straddles a stop string. ``origins`` says of each where it came from: the drafter whose
    draft was accepted, or "correction", "bonus" or "plain". ``logprobs``: of each, when asked for.
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


class Stream:
    """One request in flight. Iterating makes rounds, for every request that is open, until this one has
    something new; the last event has a finish reason, and ``result`` is there with it. :meth:`poll` only looks."""

    def __init__(self, scheduler: Scheduler, opened: OpenRequest) -> None:
        self._scheduler, self._opened = scheduler, opened
        self.result: Result | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            while self.result is None:
                with self._scheduler.lock:
                    event = self.poll()
                    if event is not None:
                        return event
                    self._scheduler.step()
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def poll(self) -> Event | None:
        """What is new since the last event, or None. Raises what ended the request when that was an error."""
        if self.result is not None:
            return None
        with self._scheduler.lock:
            opened, error = self._opened, self._opened.session.error
            if error is not None or not opened.ended:
                event = _event(opened, None)
                if event is None and error is not None:
                    raise error
                return event
            self.result = _result(opened)
            return _event(opened, self.result.finish_reason)

    @property
    def ended(self) -> bool:
        """Whether nothing more is generated: the next :meth:`poll` brings the last event, or raises."""
        return self._opened.ended

    @property
    def report(self) -> Report:
        """What the request has cost so far."""
        return self._opened.session.report

    def cancel(self) -> None:
        """Ask for the end, without waiting: the engine frees what the request holds before its next round."""
        self._opened.cancelled = True

    def close(self) -> None:
        """Stop generating and free what the request held. ``result`` is what was generated until then, with
        finish reason "cancelled" unless it had ended otherwise."""
        self.cancel()
        if self.result is None:
            with self._scheduler.lock:
                self._scheduler.free_ended()
                self.result = _result(self._opened)

    def __del__(self) -> None:
        self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _event(opened: OpenRequest, finish: str | None) -> Event | None:
    """What is new; with a ``finish`` reason, the last event."""
    piece, count = opened.text.take(final=finish is not None)
    if not piece and not count and finish is None:
        return None
    session, start = opened.session, opened.shown
    opened.shown = end = start + count
    first = session.request.prompt_length
    logprobs = None if opened.logprobs is None else opened.logprobs.between(start, end)
    return Event(piece, session.tokens[first + start : first + end], finish, session.origins[start:end], logprobs)


def _result(opened: OpenRequest) -> Result:
    """The result of a request that holds nothing any more."""
    session, text = opened.session, opened.text
    text.finish()
    report = session.report
    report.emitted = text.tokens
    # Accepted drafts behind the cut of a stop string.
    unseen = sum(origin not in NOT_DRAFTED for origin in session.origins[text.tokens :])
    report.accepted -= unseen
    report.tested -= unseen
    return Result(
        text.text,
        session.generated[: text.tokens],
        session.finish or "cancelled",
        session.request.prompt_length,
        report,
        session.origins[: text.tokens],
        None if opened.logprobs is None else opened.logprobs.between(0, text.tokens),
    )
