"""Runs the production loop on toys: one session, every round checked, and the exact distribution of what comes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from ..core.protocols import Controller, Drafter, Drafting, LogitsPipeline, RandomSource, Request, Rule, Session
from ..core.types import Array, Distribution, SamplingParams
from ..engine.loop import Commit, Loop
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import KeyedRandomSource
from .exact import enumerate_distribution, plain_distribution, total_variation
from .toy import LogitsOf, ToyRuntime

PROMPT = (0, 1)
MakePipeline = Callable[[SamplingParams], LogitsPipeline]


def remembered(logits_of: LogitsOf) -> LogitsOf:
    """The same logits, worked out once for each prefix."""
    known: dict[tuple[int, ...], Array] = {}

    def logits(prefix: Sequence[int]) -> Array:
        key = tuple(prefix)
        if key not in known:
            known[key] = np.asarray(logits_of(key), dtype=np.float64)
        return known[key]

    return logits


class RememberingPipeline:
    """A pipeline that answers a question it has heard before, same bits and same prefix, from memory."""

    def __init__(self, pipeline: LogitsPipeline) -> None:
        self._pipeline = pipeline
        self._known: dict[tuple[bytes, tuple[int, ...]], Distribution] = {}

    def distribution(self, logits: Array, prefix: Sequence[int]) -> Distribution:
        key = (logits.tobytes(), tuple(prefix))
        if key not in self._known:
            self._known[key] = self._pipeline.distribution(logits, prefix)
        return self._known[key]


def commit_until(ends: Collection[int] = (), count: int | None = None) -> Commit:
    """Stops at an end token, at the session's limit, or after ``count`` generated tokens."""

    def commit(session: Session, tokens: Sequence[int], rows: Sequence[Array]) -> int:
        for taken, token in enumerate(tokens, start=1):
            session.tokens.append(token)
            if token in ends:
                session.finish = "stop"
            elif len(session.tokens) >= session.request.limit or len(session.generated) == count:
                session.finish = "length"
            if session.finish is not None:
                return taken
        return len(tokens)

    return commit


def session(
    number: int = 0,
    *,
    count: int,
    gamma: int,
    rng: RandomSource | None = None,
    params: SamplingParams | None = None,
    pipeline: LogitsPipeline | None = None,
    prompt: Sequence[int] = PROMPT,
    spare: int = 0,
    rule: Rule | None = None,
) -> Session:
    """A session that may grow by ``count`` tokens, and whose drafts may look ``spare`` tokens further. ``rule``: for a
    drafter that is asked without a loop, which would name it."""
    params = params or SamplingParams()
    request = Request(len(prompt), len(prompt) + count + spare, params)
    rng = KeyedRandomSource(0) if rng is None else rng
    pipeline = pipeline or Pipeline(params, len(prompt))
    one = Session(number, request, list(prompt), pipeline, rng, Drafting(gamma))
    if rule is not None:
        one.rule = rule
    return one


def check_cache(loop: Loop, sessions: Iterable[Session]) -> None:
    """Raise AssertionError unless all but the pending token is cached, and nothing else; or part of the prompt."""
    for one in sessions:
        behind = len(one.tokens) - 1 - loop.cache.length(one.slot)
        if behind and (behind < 0 or one.generated):
            raise AssertionError(f"{loop.cache.length(one.slot)} entries are cached behind {len(one.tokens)} tokens")


def admit(loop: Loop, sessions: Sequence[Session]) -> None:
    """Admit sessions and read their prompts: the next round decides for each."""
    loop.admit(sessions)
    while any(loop.cache.length(one.slot) < len(one.tokens) - 1 for one in sessions):
        loop.round([one for one in sessions if loop.cache.length(one.slot) < len(one.tokens) - 1])


def finish(loop: Loop, sessions: Sequence[Session]) -> None:
    """Run admitted sessions to their ends and release them; the cache is right after every round. Raises what
    ended a session, where that was an error."""
    active = list(sessions)
    while active:
        loop.round(active)
        check_cache(loop, active)
        for one in active:
            if one.finish is not None:
                loop.release(one)
            if one.error is not None:
                raise one.error
        active = [one for one in active if one.finish is None]


def decode(
    target: LogitsOf,
    vocab_size: int,
    drafter: Drafter,
    rule: Rule,
    one: Session,
    commit: Commit | None = None,
    controller: Controller | None = None,
) -> tuple[int, ...]:
    """The tokens that the loop generates for one session."""
    loop = Loop(ToyRuntime(target, vocab_size), drafter, rule, commit or commit_until(), controller=controller)
    admit(loop, [one])
    finish(loop, [one])
    return tuple(one.generated)


def plain(
    target: LogitsOf,
    rng: RandomSource,
    params: SamplingParams,
    prompt: Sequence[int],
    count: int,
    ends: Collection[int] = (),
    generated: int = 0,
) -> list[int]:
    """What plain decoding says under ``match``: one token at a time, no loop, no cache. ``generated``: how many of
    the prompt's last tokens count as generated already."""
    pipeline, tokens = Pipeline(params, len(prompt) - generated), list(prompt)
    for _ in range(count):
        tokens.append(rng.gumbel_argmax(len(tokens), pipeline.distribution(np.asarray(target(tuple(tokens))), tokens)))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


def distance(
    target: LogitsOf,
    vocab_size: int,
    make: Callable[[Rule], Drafter],
    rule: Rule,
    *,
    gamma: int,
    count: int,
    params: SamplingParams | None = None,
    wrap: Callable[[RandomSource], RandomSource] = lambda rng: rng,
    make_pipeline: MakePipeline = lambda params: Pipeline(params, len(PROMPT)),
    spare: int = 0,
    make_controller: Callable[[], Controller] | None = None,
    failing: bool = False,
) -> float:
    """Total variation between the exact distribution of the loop's first ``count`` tokens and the target's.

    ``params``: temperature 1 when None. ``wrap`` and ``make_pipeline`` put another random source and pipeline in
    the place of the production's. ``make_controller``: decides what each run drafts. ``failing``: the drafter is one
    that fails in some runs. Raises AssertionError when the loop reports that another one failed, or that this one never
    did.
    """
    params = params or SamplingParams(temperature=1.0)
    pipeline = RememberingPipeline(make_pipeline(params))
    warnings: list[str] = []

    def run(rng: RandomSource) -> tuple[int, ...]:
        one = session(count=count, gamma=gamma, rng=wrap(rng), params=params, pipeline=pipeline, spare=spare)
        one.draft.adaptive = make_controller is not None
        controller = make_controller() if make_controller else None
        tokens = decode(target, vocab_size, make(rule), rule, one, commit_until(count=count), controller)
        warnings.extend(one.report.warnings)
        return tokens

    logger = logging.getLogger("outpace")
    disabled, logger.disabled = logger.disabled, failing  # thousands of runs would each say that drafting failed
    try:
        outcomes = enumerate_distribution(run)
    finally:
        logger.disabled = disabled
    found = total_variation(outcomes, plain_distribution(target, Pipeline(params, len(PROMPT)), PROMPT, count))
    if failing != bool(warnings):
        raise AssertionError(warnings[0] if warnings else "the draft was to fail, and never did")
    return found
