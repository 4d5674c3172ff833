"""Section ``soak``: random configurations on the tiny pair, each compared with the naive oracle.

A case is a function of (seed, number), so that one command reproduces it. Under ``match``, and wherever one token has
all the mass, every answer must be the oracle's. Elsewhere what any distribution obeys is checked: each token lies in
the target's support, and the answer ends where it must, for the reason it gives.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from .. import drafters, verify
from ..catalogue import resolve
from ..core.types import Constraint, SamplingParams
from ..engine.build import load
from ..engine.engine import Engine
from ..engine.stream import Result, Stream
from ..kernels.sampling import default_sampler
from ..runtimes.loading import LoadedModel, load_model
from .checks import Check, Options, skipped
from .equality import PROMPTS, first_difference
from .oracle import Answer, Oracle, first_stop

CASES, QUICK_CASES = 2000, 30
_A_LINE = 500  # cases that share a line of the audit
_TIE = 1e-3  # logits closer than this may change places where a runtime promises no bits
_OFTEN = ["own", "own", "draft_model", "lookup"]  # besides every drafter once; "own": the target drafts for itself
_ELSEWHERE = {"layer_skip", "low_bit", "intersect", "reencode"}  # take seconds to make, or want another vocabulary
_CONSTRAINTS = (
    Constraint("json_object"),
    Constraint("json_schema", '{"type": "array", "items": {"enum": ["def", 1, null]}, "maxItems": 4}'),
    Constraint("regex", r"(def|class) \w{1,8}(\(self\))?:\n"),
)
_STOPS = ("\n", " ", "self", "e", ")", "in", "def ", "():\n", "return", "\0", "s(", "==")


@dataclass(frozen=True)
class SoakRequest:
    """One prompt of a case. ``cancel_after``: events of its stream that are read before it is closed."""

    prompt: list[int]
    params: SamplingParams
    cancel_after: int | None = None


@dataclass(frozen=True)
class Case:
    """A configuration, and the requests it gets."""

    accept: str
    drafter: str
    gamma: int
    max_batch: int
    context: int | None
    draft_context: int | None
    streamed: bool  # all requests as streams that take turns, some of which end early
    requests: list[SoakRequest]
    tight: bool  # memory for keys and values that the longest request just fits


def choices() -> tuple[list[str], list[str]]:
    """Rules and drafters of the cases: the lossless rules, ``match`` twice, and the drafters. Those that other packages
    register are among them; whoever installs one has other cases."""
    rules = [name for name, rule in verify.rules().items() if rule.LOSSLESS]
    return ["match", *rules], [*_OFTEN, *(name for name in drafters.names() if name not in _ELSEWHERE)]


def case(seed: int, number: int) -> Case:
    """The case of that number."""
    random = Random(f"outpace soak {seed} {number}")
    accept, drafter = map(random.choice, choices())
    context = random.choice((None, None, None, 24, 40))
    streamed = random.random() < 0.4
    requests = [_request(random, context, streamed) for _ in range(random.randint(1, 4))]
    return Case(
        accept=accept,
        drafter=drafter,
        gamma=random.choice((0, 1, 1, 2, 3, 4, 5, 8, 12)),
        max_batch=random.randint(1, 4),
        context=context,
        draft_context=random.choice((None, None, 16, 32)),
        streamed=streamed,
        requests=requests,
        tight=random.random() < 0.5,
    )


def _request(random: Random, context: int | None, streamed: bool) -> SoakRequest:
    length = random.randint(1, 20) if random.random() < 0.9 else context or 1
    if random.random() < 0.8:
        text = _tiny("tiny", None).tokenizer.encode(random.choice(PROMPTS) * 5, add_special=False)
        start = random.randrange(max(1, len(text) - length))
        prompt = text[start : start + length]
    else:
        # Whole characters only: whether the end of half a character belongs to the answer is a matter of taste.
        prompt = random.choices(_whole_tokens(), k=length)
    constraint = random.choice((None, None, None, None, *_CONSTRAINTS))
    params = SamplingParams(
        temperature=random.choice((0.0, 0.0, 0.5, 1.0, 1.7)),
        top_k=random.choice((0, 0, 0, 1, 3, 50)),
        top_p=random.choice((1.0, 1.0, 0.9, 0.5)),
        min_p=random.choice((0.0, 0.0, 0.05, 0.3)),
        seed=random.randrange(2**64),
        max_tokens=random.choice((0, 1, 2, 5, 12, 20, 20, *((None,) if context else ()))),
        stop=random.sample(_STOPS, random.choice((0, 0, 1, 2))),
        stop_token_ids=[random.randrange(1024) for _ in range(random.choice((0, 0, 20)))],
        ignore_eos=constraint is None and random.random() < 0.5,
        presence_penalty=random.choice((0.0, 0.0, 0.0, 0.5, -1.0)),
        frequency_penalty=random.choice((0.0, 0.0, 0.0, 0.7)),
        repetition_penalty=random.choice((1.0, 1.0, 1.0, 1.2, 0.8)),
        logit_bias=random.choice(({}, {}, {}, {random.randrange(1024): random.choice((-100.0, 4.0))})),
        constraint=constraint,
    )
    return SoakRequest(prompt, params, random.randint(0, 6) if streamed and random.random() < 0.5 else None)


@functools.cache
def _tiny(name: str, context: int | None) -> LoadedModel:
    return load_model(resolve(name), weights="f32", context=context, threads=1)


@functools.cache
def _whole_tokens() -> list[int]:
    tokenizer = _tiny("tiny", None).tokenizer
    return [token for token in range(tokenizer.size) if "\ufffd" not in tokenizer.decode([token])]


@functools.cache
def _oracle(context: int | None) -> Oracle:
    return Oracle(_tiny("tiny", context), default_sampler())


def checks(options: Options) -> Iterator[Check]:
    """Lines of 500 cases, and one for each of the first failures."""
    total = options.soak_cases if options.soak_cases is not None else QUICK_CASES if options.quick else CASES
    for start in range(0, total, _A_LINE):
        whole = range(start, min(start + _A_LINE, total))
        numbers = [number for number in whole if case(options.seed, number).drafter not in skipped()]
        failed, answers = [], 0
        for number in numbers:
            found = run_case(options.seed, number)
            answers += len(case(options.seed, number).requests)
            if found:
                failed.append(number)
                if len(failed) <= 3:
                    yield failure(options.seed, number, found)
        note = f"{answers} answers of {len(numbers)} random configurations are as the oracle has them"
        if failed:
            note = f"{len(failed)} of {len(numbers)} configurations failed"
        if len(numbers) < len(whole):
            note += f"; {len(whole) - len(numbers)} more need torch"
        name = f"cases {whole.start} to {whole.stop - 1}"
        yield Check("soak", name, not failed, note, {"failed": failed, "answers": answers})


def failure(seed: int, number: int, found: Sequence[str]) -> Check:
    """A failing case: what is wrong, and the command that shows it again."""
    command = f"outpace audit --soak-case {number} --seed {seed}"
    values: dict[str, object] = {"command": command, "case": str(case(seed, number)), "found": list(found)}
    return Check("soak", f"case {number}", False, f"{found[0]}; reproduce: {command}", values)


def run_case(seed: int, number: int) -> list[str]:
    """What is wrong with a case; nothing when all is well."""
    one = case(seed, number)
    target = _tiny("tiny", one.context)
    drafter, draft = ("draft_model", "tiny") if one.drafter == "own" else (one.drafter, "tiny-draft")
    engine = load(
        target,
        _tiny(draft, one.draft_context) if drafters.needs_draft(drafter) else None,
        drafter=drafter,
        controller="fixed",
        accept=one.accept,
        max_batch=one.max_batch,
        drafter_options={"lookup": {"min_match": 1}} if one.drafter == "lookup" else None,
    )
    if one.tight:
        cache_users, context = engine.scheduler.admission.cache_users, target.runtime.context
        limits = [
            min(context, len(r.prompt) + (context if r.params.max_tokens is None else r.params.max_tokens))
            for r in one.requests
        ]
        engine.scheduler.admission.most_bytes = sum(user.bytes_for(max(limits)) for user in cache_users)
    wrong: list[str] = []
    if one.streamed:
        results = _streamed(engine, one, wrong)
    else:
        prompts, params = [r.prompt for r in one.requests], [r.params for r in one.requests]
        answers = engine.generate(prompts, params, gamma=one.gamma)
        assert isinstance(answers, list)
        results = answers
    for place, (request, result) in enumerate(zip(one.requests, results, strict=True)):
        wrong += [f"request {place}: {fault}" for fault in _faults(one, request, result, _oracle(one.context))]
    held = engine.scheduler.loop.cache.slots + engine.open_requests[0]
    if held:
        wrong.append(f"{held} slots or sessions are still held")
    return wrong


def _streamed(engine: Engine, one: Case, wrong: list[str]) -> list[Result]:
    """All requests as streams, read in turns: each round of one lies between rounds of the others."""
    streams = [engine.stream(request.prompt, request.params, gamma=one.gamma) for request in one.requests]
    seen = [""] * len(streams)
    events = [0] * len(streams)
    active, left = list(range(len(streams))), set()
    while active:
        for i in list(active):
            limit = one.requests[i].cancel_after
            if limit is not None and events[i] >= limit:
                left.add(i)
                streams[i].close()
                active.remove(i)
                continue
            event = next(streams[i], None)
            if event is None:
                active.remove(i)
                continue
            seen[i] += event.text
            events[i] += 1
    results = [_result(stream) for stream in streams]
    for i, (text, result) in enumerate(zip(seen, results, strict=True)):
        # Rounds of others may have brought more, even the end, than a reader who leaves has been told.
        whole = result.text.startswith(text) if i in left else text == result.text
        if not whole:
            wrong.append(f"request {i}: the stream said {text!r}, the result {result.text!r}")
    return results


def _result(stream: Stream) -> Result:
    assert stream.result is not None
    return stream.result


def _faults(one: Case, request: SoakRequest, result: Result, oracle: Oracle) -> list[str]:
    params, prompt = request.params, request.prompt
    faults = []
    if params.temperature == 0 or params.top_k == 1 or one.accept == "match":
        expected = oracle.answer(prompt, params)
        if not _agrees(result, expected) and not _is_tie(one, request, result, expected):
            faults.append(
                f"{_said(result)}, the oracle {expected.text!r} {expected.token_ids} {expected.finish_reason}"
            )
    else:
        faults += _distribution_abiding(request, result, oracle)
    cancelled = result.finish_reason == "cancelled"
    if cancelled and request.cancel_after is None:
        faults.append("cancelled, and nobody had asked for it")
    report = result.report
    if report.warnings:
        faults.append(report.warnings[0])
    if report.emitted != len(result.token_ids) or not 0 <= report.accepted <= report.tested <= report.drafted:
        faults.append(f"the report does not add up: {report}")
    return faults


def _said(result: Result) -> str:
    return f"the engine says {result.text!r} {result.token_ids} {result.finish_reason}"


def _agrees(result: Result, expected: Answer) -> bool:
    if result.finish_reason == "cancelled":
        whole = expected.token_ids[: len(result.token_ids)] == result.token_ids
        return whole and len(result.token_ids) <= len(expected.token_ids)
    return (result.text, result.token_ids, result.finish_reason) == (
        expected.text,
        expected.token_ids,
        expected.finish_reason,
    )


def _is_tie(one: Case, request: SoakRequest, result: Result, expected: Answer) -> bool:
    target = _tiny("tiny", one.context)
    if target.runtime.capabilities().row_invariant:
        return False
    _, gap = first_difference(target, request.prompt, request.params, expected.token_ids, result.token_ids)
    return gap is not None and gap < _TIE


def _distribution_abiding(request: SoakRequest, result: Result, oracle: Oracle) -> list[str]:
    """What holds for any draw: the support of every token, and the ends."""
    prompt, params, tokens = request.prompt, request.params, result.token_ids
    faults = []
    for i, token in enumerate(tokens):
        if not oracle.distribution([*prompt, *tokens[:i]], params, len(prompt)).prob(token) > 0:
            faults.append(f"token {i}, {token}, has no probability there")
    if tokens and (early := oracle.ended(prompt, tokens[:-1], params)).finish_reason is not None:
        faults.append(f"{_said(result)}, but it should have ended at {early.token_ids}")
    ended = oracle.ended(prompt, tokens, params)
    behind_a_stop = result.finish_reason == "stop" and params.stop and ended.finish_reason in (None, "length")
    if behind_a_stop:  # the stop string itself lies in tokens that are not shown
        if first_stop(result.text, params.stop) is not None or not ended.text.startswith(result.text):
            faults.append(f"{_said(result)}, which holds a stop string")
    elif result.finish_reason == "cancelled":
        if ended.finish_reason is not None and not params.stop:
            faults.append(f"{_said(result)}, but it had ended with {ended.finish_reason}")
    elif not _agrees(result, ended):
        faults.append(f"{_said(result)}, but these tokens end as {ended.text!r} {ended.finish_reason}")
    return faults
