"""Engine: prompts in, results and streams out, over one loop."""

from __future__ import annotations

import itertools
import secrets
import statistics
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ..core.errors import ContextError, ParameterError
from ..core.protocols import Drafter, Rule, Session
from ..core.report import Report
from ..core.types import Chunk, SamplingParams
from ..kernels.sampling import Sampler
from ..models.chat import encode_chat, encode_prompt
from ..models.loading import LoadedModel
from ..models.tokenizer import StreamDecoder
from ..sampling.coins import KeyedCoins
from ..sampling.pipeline import Pipeline
from .loop import Loop
from .text import TextState

Message = Mapping[str, object]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text as it stands, token ids, or chat messages ``{"role": ..., "content": ...}``."""

_CONTEXT_TAIL = 8  # prompt tokens shown to the detokenizer, so that a first piece keeps its leading space


@dataclass(frozen=True)
class Result:
    """One answer. ``token_ids`` are the tokens that ``text`` needs; an end token is among them, and so is
    the token that straddles a stop string. ``finish_reason``: "stop", "length" or "cancelled"."""

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    report: Report


@dataclass(frozen=True)
class Event:
    """What a round added to a stream: text that is certain, and the tokens it came from."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None


@dataclass(eq=False)
class _Answer:
    """A session, and what decides where its text ends."""

    session: Session
    text: TextState
    ends: frozenset[int]
    drafted: list[bool] = field(default_factory=list)  # of each token: whether it is a draft that stood


class Stream:
    """Iterates over the events of one answer. The last event has a finish reason, and ``result`` is there
    with it. Closing earlier frees everything; ``result`` then holds what was generated, with finish
    reason "cancelled"."""

    def __init__(self, engine: Engine, answer: _Answer) -> None:
        self._engine, self._answer = engine, answer
        self._events = engine._stream(answer)
        self.result: Result | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            event = next(self._events)
        except BaseException:
            self.close()
            raise
        if event.finish_reason is not None:
            self.close()
        return event

    def close(self) -> None:
        """Stop generating and free what it held."""
        if self.result is None:
            self._events.close()
            self.result = self._engine._finish(self._answer)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Engine:
    """A target model with a drafter and an acceptance rule. Made by :func:`outpace.load`.

    May be shared between threads: rounds of different calls take turns, and with the ``match`` rule
    every call gets what it would get alone.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: Drafter,
        rule: Rule,
        *,
        names: tuple[str, str],
        gamma: int,
        max_batch: int,
        sampler: Sampler | None = None,
    ) -> None:
        self.target = target
        self.gamma = gamma
        self.drafter_name, self.rule_name = names
        self._max_batch, self._sampler = max_batch, sampler
        self._loop = Loop(target.runtime, drafter, rule, self._commit)
        self._running: dict[int, _Answer] = {}
        self._ids = itertools.count()
        # Reentrant: a stream that is dropped unread may be collected, and so closed, in the middle of a round.
        self._lock = threading.RLock()
        self._row_seconds: dict[int, float] = {}

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        gamma: int | None = None,
    ) -> Result | list[Result]:
        """Answer one prompt, or each of a list of prompts (the answers keep their order).

        ``params``: one for all, or one for each prompt. ``gamma`` overrides the drafted tokens a round
        for this call; 0 is plain decoding. Raises ParameterError, ContextError, TemplateError.
        """
        if _is_single(prompt):
            if params is not None and not isinstance(params, SamplingParams):
                raise ParameterError(f"one prompt takes one SamplingParams, not {type(params).__name__}")
            return self._run([self._session(prompt, params, gamma)])[0]  # type: ignore[arg-type]
        every = [params] * len(prompt) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(every) != len(prompt):
            raise ParameterError(f"{len(every)} SamplingParams were given for {len(prompt)} prompts")
        return self._run([self._session(p, q, gamma) for p, q in zip(prompt, every, strict=True)])  # type: ignore[arg-type]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, *, gamma: int | None = None) -> Stream:
        """Answer one prompt piece by piece. The pieces' texts joined are the result's text."""
        return Stream(self, self._session(prompt, params, gamma))

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that a prompt becomes. Raises ParameterError when there are none."""
        tokenizer = self.target.tokenizer
        _check_kind(prompt)
        try:
            if isinstance(prompt, str):
                ids = encode_prompt(tokenizer, prompt)
            elif prompt and isinstance(prompt[0], Mapping):
                ids = encode_chat(tokenizer, self.target.chat_template, list(prompt))  # type: ignore[arg-type]
            else:
                ids = [_token(token, tokenizer.size) for token in prompt]
        except TypeError as error:  # the tokenizer's word for a lone surrogate, half of a UTF-16 character
            raise ParameterError("the prompt's text is not valid Unicode: it cannot be written as UTF-8") from error
        if not ids:
            without = ", and this model's tokenizer has no token to begin with" if isinstance(prompt, str) else ""
            raise ParameterError(f"the prompt is empty{without}")
        return ids

    def _session(self, prompt: Prompt, params: SamplingParams | None, gamma: int | None) -> _Answer:
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be a SamplingParams, not {type(params).__name__}")
        if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, int) or gamma < 0):
            raise ParameterError(f"gamma must be a whole number of at least 0, not {gamma!r}")
        ids = self.encode(prompt)
        context = self.target.runtime.context
        if len(ids) > context:
            raise ContextError(f"the prompt has {len(ids)} tokens, but the model's context ends at {context}")
        seed = secrets.randbits(64) if params.seed is None else params.seed
        limit = context if params.max_tokens is None else min(context, len(ids) + params.max_tokens)
        session = Session(
            id=next(self._ids),
            tokens=ids,
            prompt_length=len(ids),
            params=params,
            pipeline=Pipeline(params),
            coins=KeyedCoins(seed, sampler=self._sampler),
            limit=limit,
            gamma=self.gamma if gamma is None else gamma,
        )
        report = session.report
        report.drafter, report.rule = self.drafter_name if session.gamma else "none", self.rule_name
        report.gamma, report.seed, report.prompt_tokens = session.gamma, seed, len(ids)
        if len(ids) >= limit:
            session.finish = "length"
        text = TextState(StreamDecoder(self.target.tokenizer, ids[-_CONTEXT_TAIL:]), params.stop)
        own_ends = frozenset() if params.ignore_eos else self.target.end_tokens
        return _Answer(session, text, own_ends | frozenset(params.stop_token_ids))

    def _run(self, answers: list[_Answer]) -> list[Result]:
        """Run sessions to their ends, at most max_batch at a time, the next one joining as one leaves."""
        waiting = deque(answer for answer in answers if answer.session.finish is None)
        active: list[_Answer] = []
        try:
            while waiting or active:
                joining = [waiting.popleft() for _ in range(min(len(waiting), self._max_batch - len(active)))]
                active += joining
                with self._lock:
                    self._admit(joining)
                    self._loop.round([answer.session for answer in active])
                    for answer in active:
                        if answer.session.finish is not None:
                            self._release(answer)
                active = [answer for answer in active if answer.session.finish is None]
        finally:
            with self._lock:
                for answer in active:
                    self._release(answer)
        return [self._finish(answer) for answer in answers]

    def _admit(self, answers: list[_Answer]) -> None:
        self._running |= {answer.session.id: answer for answer in answers}
        self._loop.admit([answer.session for answer in answers])

    def _release(self, answer: _Answer) -> None:
        self._running.pop(answer.session.id, None)
        self._loop.release(answer.session)

    def _stream(self, answer: _Answer) -> Generator[Event, None, None]:
        session, text = answer.session, answer.text
        shown = session.prompt_length
        try:
            if session.finish is None:
                with self._lock:
                    self._admit([answer])
            while session.finish is None:
                with self._lock:
                    self._loop.round([session])
                if session.finish is not None:
                    break
                piece, count = text.take()
                if piece or count:
                    yield Event(piece, session.tokens[shown : shown + count])
                    shown += count
            text.finish()
            piece, count = text.take(final=True)
            yield Event(piece, session.tokens[shown : shown + count], session.finish)
        finally:
            with self._lock:
                self._release(answer)

    def _commit(self, session: Session, tokens: Sequence[int]) -> int:
        """The one place where an answer ends: end tokens, stop strings, the limit of length."""
        answer = self._running[session.id]
        for taken, token in enumerate(tokens, start=1):
            session.tokens.append(token)
            stopped = answer.text.push(token)
            answer.drafted.append(taken < len(tokens))  # the last one is the target's own
            if stopped or token in answer.ends:
                session.finish = "stop"
            elif len(session.tokens) >= session.limit:
                session.finish = "length"
            if session.finish is not None:
                return taken
        return len(tokens)

    def _finish(self, answer: _Answer) -> Result:
        """The result of a session that has been released."""
        session, text = answer.session, answer.text
        text.finish()
        report = session.report
        report.emitted = text.tokens
        unseen = sum(answer.drafted[text.tokens :])  # drafts that stood, behind the cut of a stop string
        report.accepted -= unseen
        report.tested -= unseen
        report.pass_seconds = self.pass_seconds
        ids = session.generated[: text.tokens]
        return Result(text.text, ids, session.finish or "cancelled", session.prompt_length, report)

    def pass_seconds(self, rows: int, cached: int = 128, repeats: int = 3) -> float:
        """Seconds of a target pass over ``rows`` rows behind ``cached`` entries: the median of some
        passes, measured once for each number of rows and remembered."""
        with self._lock:
            if rows not in self._row_seconds:
                runtime, cache = self.target.runtime, self._loop.cache
                cached = max(0, min(cached, runtime.context - rows))
                slot = cache.open(cached + rows)
                try:
                    if cached:
                        runtime.forward([Chunk(slot, [0] * cached, logits_from=cached)], cache)
                    times = []
                    for _ in range(repeats):
                        start = perf_counter()
                        runtime.forward([Chunk(slot, [0] * rows)], cache)
                        times.append(perf_counter() - start)
                        cache.keep(slot, cached, [])
                finally:
                    cache.close(slot)
                self._row_seconds[rows] = statistics.median(times)
            return self._row_seconds[rows]


def _is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    _check_kind(prompt)
    # An empty list is an empty batch: there is nothing to say which other kind it was meant to be.
    return isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], (int, Mapping)))


def _check_kind(prompt: object) -> None:
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        kind = type(prompt).__name__
        raise ParameterError(f"a prompt is text, token ids, chat messages or a list of these, not {kind}")


def _token(token: object, size: int) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
        raise ParameterError(f"prompt token {token!r} is not an id of the vocabulary of {size}")
    return token
