"""Requests that are opened, stepped and polled: joining, waiting, failing, and reusing what others have read."""

import threading

import pytest
from tests.helpers.shipped import model, shared_engine
from tests.helpers.toys import MATCH, Scripted, admit, commit_until, decode, finish, plain, remembered, session

import outpace
from outpace.audit.toy import ToyRuntime, hashed_logits
from outpace.core.errors import ParameterError
from outpace.core.types import SamplingParams
from outpace.engine.loop import Loop
from outpace.sampling.pipeline import Pipeline

V = 6
TARGET = remembered(hashed_logits(V, 41, order=2))
GREEDY = SamplingParams(max_tokens=24)
CODE = "class Stack:\n    def __init__(self):\n        self."
LONG = "class Tree:\n    def __init__(self):\n        self.root = None\n" * 3


def engine(**options):
    pair = {"target": model("tiny"), "draft": model("tiny-draft"), "drafter": "draft_model,lookup"}
    return outpace.load(**pair, controller="fixed", **options)


def drain(one: outpace.Engine, streams) -> list[list[outpace.Event]]:
    """Step until nothing is left, polling as a server does; each stream's events."""
    events: list[list[outpace.Event]] = [[] for _ in streams]
    while one.step():
        for stream, seen in zip(streams, events, strict=True):
            event = stream.poll()
            if event is not None:
                seen.append(event)
    for stream, seen in zip(streams, events, strict=True):
        event = stream.poll()
        if event is not None:
            seen.append(event)
    return events


def test_polling_gives_what_iterating_gives():
    one = engine()
    alone = [one.generate(prompt, GREEDY) for prompt in (CODE, LONG)]
    streams = [one.stream(prompt, GREEDY) for prompt in (CODE, LONG)]
    assert streams[0].poll() is None
    for events, stream, expected in zip(drain(one, streams), streams, alone, strict=True):
        assert "".join(event.text for event in events) == expected.text == stream.result.text
        assert [token for event in events for token in event.token_ids] == expected.token_ids
        assert [origin for event in events for origin in event.origins] == stream.result.origins
        assert len(stream.result.origins) == len(expected.token_ids)
        assert stream.poll() is None
    assert not one.step()
    assert one.open_requests == (0, 0)


def test_each_request_names_its_own_drafter_rule_and_gamma():
    one = engine()
    plainly = one.generate(CODE, GREEDY, gamma=0)
    assert set(plainly.origins) == {"plain"}
    streams = [
        one.stream(CODE, GREEDY, drafter="lookup"),
        one.stream(CODE, GREEDY, accept="ratio", gamma=2),
        one.stream(CODE, GREEDY, accept="block"),
        one.stream(CODE, GREEDY, gamma=0),
    ]
    drain(one, streams)
    assert [stream.result.token_ids for stream in streams] == [plainly.token_ids] * 4
    reports = [stream.result.report for stream in streams]
    assert [(r.drafter, r.rule, r.gamma) for r in reports] == [
        ("lookup", "match", one._gammas["lookup"]),
        ("draft_model", "ratio", 2),
        ("draft_model", "block", 4),
        ("none", "match", 0),
    ]
    for options, words in (({"drafter": "none"}, "drafter must be one of"), ({"accept": "maybe"}, "accept must be"),
                           ({"sample": -1}, "sample must be")):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            one.stream(CODE, GREEDY, **options)


def test_samples_of_one_seed_differ_and_each_comes_again():
    one = engine()
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=16)
    first, second, again = [one.generate(CODE, params, sample=n) for n in (0, 1, 1)]
    assert first.token_ids != second.token_ids == again.token_ids


def test_a_long_prompt_does_not_stall_those_who_are_answering():
    """B51: prompt pieces and rounds share their passes, and each gets what it would get alone."""
    runtime = ToyRuntime(TARGET, V)
    loop = Loop(runtime, Scripted(lambda one, budget: None), MATCH, commit_until(), prefill_rows=4)
    early, late = session(1, count=20, gamma=0), session(2, count=5, gamma=0, prompt=[i % V for i in range(30)])
    admit(loop, [early])
    loop.admit([late])
    for turn in range(1, 8):
        loop.round([early, late])
        assert len(early.generated) == turn
        assert loop.cache.length(late.slot) == min(4 * turn, 29)
    finish(loop, [early, late])
    for one in (early, late):
        prompt = one.tokens[: one.request.prompt_length]
        assert one.generated == plain(
            TARGET, one.rng, one.request.params, prompt, one.request.limit - one.request.prompt_length
        )


def test_a_distribution_that_fails_ends_one_request_only():
    class Failing(Pipeline):
        def distribution(self, logits, prefix):
            if len(prefix) > 6:
                raise ValueError("no such state")
            return super().distribution(logits, prefix)

    loop = Loop(ToyRuntime(TARGET, V), Scripted(lambda one, budget: None), MATCH, commit_until())
    good, bad = session(1, count=12, gamma=0), session(2, count=12, gamma=0, pipeline=Failing(GREEDY))
    admit(loop, [good, bad])
    while good.finish is None:
        active = [one for one in (good, bad) if one.finish is None]
        loop.round(active)
    assert good.generated == plain(TARGET, good.rng, good.request.params, good.tokens[:2], 12)
    assert (bad.finish, str(bad.error), len(bad.tokens)) == ("error", "no such state", 7)
    for one in (good, bad):
        loop.release(one)
    assert loop.cache.slots == 0


def test_the_error_of_a_request_reaches_its_reader(monkeypatch):
    one = engine()
    expected = one.generate(CODE, GREEDY)
    good, bad = one.stream(CODE, GREEDY), one.stream(LONG, GREEDY)
    monkeypatch.setattr(bad._opened.session.target_pipeline, "distribution", lambda *args: 1 / 0)
    assert "".join(event.text for event in good) == expected.text
    with pytest.raises(ZeroDivisionError):
        list(bad)
    assert bad.result.finish_reason == "error"
    assert one.open_requests == (0, 0)


def test_beginnings_are_read_once():
    one = engine(prefix_bytes=1 << 24)
    whole = one.generate(LONG, GREEDY)
    assert whole.report.prompt_cached == 0
    longer = [*one.encode(LONG), *whole.token_ids[:10]]
    reference = engine()
    for prompt in (longer, LONG):
        again = one.generate(prompt, GREEDY)
        assert again.token_ids == reference.generate(prompt, GREEDY).token_ids
        assert again.report.prompt_cached == again.prompt_tokens - 1
    other = one.generate("x" + LONG, GREEDY)
    assert other.report.prompt_cached == 0
    assert one.generate(LONG, GREEDY, tenant="somebody else").report.prompt_cached == 0


def test_beginnings_are_given_up_when_there_is_no_room():
    prompts = [[token] * 40 for token in range(100, 108)]
    alone = engine(prefix_bytes=1 << 30)
    alone.generate(prompts[0], GREEDY)
    size = alone.kv_bytes
    one = engine(prefix_bytes=2 * size)
    for prompt in prompts:
        one.generate(prompt, GREEDY)
        assert one.kv_bytes <= 2 * size
    assert one.generate(prompts[-1], GREEDY).report.prompt_cached == 39
    assert one.generate(prompts[0], GREEDY).report.prompt_cached == 0


def test_cancelling_from_another_thread_frees_everything_within_a_round():
    one = engine()
    streams = [one.stream(CODE, GREEDY) for _ in range(3)]
    one.step()
    thread = threading.Thread(target=streams[1].cancel)
    thread.start()
    thread.join()
    one.step()
    assert one.open_requests[0] == 2
    streams[1].close()
    assert streams[1].result.finish_reason == "cancelled"
    drain(one, [streams[0], streams[2]])
    expected = one.generate(CODE, GREEDY).token_ids
    assert streams[0].result.token_ids == streams[2].result.token_ids == expected


def test_closing_from_another_thread_while_one_iterates():
    one = engine()
    stream = one.stream(CODE, SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    thread = threading.Thread(target=stream.close)
    thread.start()
    for _ in stream:
        pass
    thread.join()
    assert one.open_requests == (0, 0)
    assert stream.result.finish_reason in ("cancelled", "length")


def test_logprobs_are_the_targets_whatever_drafts():
    """B35 and its kind: one entry a token, the same with and without drafts."""
    one = engine()
    params = SamplingParams(max_tokens=20, logprobs=3, temperature=0.7, seed=3)
    fast, slow = one.generate(LONG, params), one.generate(LONG, params, gamma=0)
    assert fast.report.accepted > 0
    assert fast.logprobs == slow.logprobs
    assert [entry.token for entry in fast.logprobs] == fast.token_ids
    for entry in fast.logprobs:
        assert len(entry.top) == 3
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
    assert one.generate(LONG, GREEDY).logprobs is None
    assert shared_engine("none").generate(LONG, params).logprobs == slow.logprobs


def test_a_second_drafter_sees_accepted_tokens_as_a_chain():
    told = []

    class Watching(Scripted):
        def observe(self, sessions, verdicts, seen):
            told.extend((v.path, v.token, list(f.logits[0].argmax(-1))) for v, f in zip(verdicts, seen, strict=True))

    at_work = Scripted(lambda one, budget: outpace_tree(one))
    watching = Watching(lambda one, budget: None)

    def outpace_tree(one):
        said = plain(TARGET, one.rng, one.request.params, one.tokens, 2)
        wrong = (said[0] + 1) % V
        return outpace.core.types.Proposal([wrong, *said], [-1, -1, 1])

    one = session(count=9, gamma=3)
    one.draft.drafters, one.draft.drafter_name = {"at work": at_work, "watching": watching}, "at work"
    tokens = decode(TARGET, V, at_work, MATCH, one)
    assert list(tokens) == plain(TARGET, one.rng, one.request.params, one.tokens[:2], 9)
    said = list(tokens)
    assert told[0] == ([0, 1], said[2], said[:3])
    assert set(one.origins) == {"at work", "bonus", "plain"} or "correction" in one.origins
