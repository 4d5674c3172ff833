"""The engine on the shipped tiny pair: prompts, limits, ends, seeds, batches, threads, and what it frees."""

import dataclasses
import gc
import json
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from tests.helpers.shipped import model, new_engine, open_slots, shared_engine

import outpace
from outpace import Result, SamplingParams
from outpace.core.errors import ContextError, DrafterError, ParameterError, TemplateError, VocabularyError
from outpace.core.types import RoundSeconds
from outpace.engine.build import load
from outpace.engine.explain import explain

CODE = "def read(path):\n    with open(path) as f:\n        return"
GREEDY = SamplingParams(max_tokens=20)
DRAFTERS = ["draft_model", "lookup", "own"]


def ids(count: int) -> list[int]:
    """A prompt of that many tokens."""
    return [(200 + 7 * i) % 1024 for i in range(count)]


def plain(prompt, params=GREEDY) -> Result:
    return shared_engine("none").generate(prompt, params)


# ---- prompts


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("prompt", ["", [[]], [""], [CODE, ""], [ids(3), []]])
def test_empty_prompts_are_refused_and_the_next_one_works(prompt, drafter):
    """B45: the tiny pair's tokenizer has nothing to begin with."""
    engine = shared_engine(drafter)
    with pytest.raises(ParameterError, match="prompt is empty"):
        engine.generate(prompt, GREEDY)
    assert open_slots(engine) == 0
    assert engine.generate(CODE, GREEDY).token_ids == plain(CODE).token_ids


def test_an_empty_list_is_an_empty_batch_and_an_empty_stream_is_refused():
    assert shared_engine().generate([]) == []
    with pytest.raises(ParameterError, match="prompt is empty"):
        shared_engine().stream([])


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("prompt", [" ", "     ", "\n\n", [5], "naïve 東京 \U0001f409"])
def test_shortest_and_oddest_prompts(prompt, drafter):
    assert shared_engine(drafter).generate(prompt, GREEDY).token_ids == plain(prompt).token_ids


@pytest.mark.parametrize(
    "prompt",
    [[1024], [-1], [3, 10**12], [3, 1.5], [True, False], [3, "a"], [3, None], b"text", 5, None, 1.5, [None], [1.5],
     ["text", 5], [b"text"], np.array([1, 2]), {"role": "user", "content": "x"}, iter("ab"), "half \ud800"],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(prompt):
    with pytest.raises(ParameterError):
        shared_engine().generate(prompt, GREEDY)
    assert open_slots(shared_engine()) == 0


@pytest.mark.parametrize("prediction", [[3, 1024], [-1], [1.5], [True]])
def test_what_is_no_prediction_is_refused(prediction):
    """In a shared pass of the draft model it would have left all others without drafts."""
    with pytest.raises(ParameterError, match="prediction token"):
        shared_engine().open(CODE, GREEDY, prediction=prediction)
    assert open_slots(shared_engine()) == 0


def test_text_ids_and_messages():
    engine = shared_engine()
    tokenizer = engine.target.tokenizer
    from_ids = engine.generate(tokenizer.encode(CODE, add_special=False), GREEDY)
    assert from_ids.text == engine.generate(CODE, GREEDY).text
    messages = [{"role": "user", "content": "add(1, 2)"}]
    rendered = "<|im_start|>user\nadd(1, 2)<|im_end|>\n<|im_start|>assistant\n"
    assert engine.encode(messages) == engine.encode(rendered)
    both = engine.generate([messages, CODE], GREEDY)
    assert [one.token_ids for one in both] == [plain(rendered).token_ids, plain(CODE).token_ids]
    assert both[0].prompt_tokens == len(engine.encode(messages)) == both[0].report.prompt_tokens


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('system role not supported') }}", "system role not supported"),
        ("{{ messages[0]['content'] + 1 }}", "chat template fails"),
        ("{% if %}", "chat template is broken"),
    ],
)
def test_template_errors_are_clear_and_harmless(template, words):
    """B39."""
    engine = load(dataclasses.replace(model(), chat_template=template))
    with pytest.raises(TemplateError, match=words):
        engine.generate([{"role": "system", "content": "x"}], GREEDY)
    assert engine.generate(CODE, GREEDY).token_ids == plain(CODE).token_ids


# ---- the context's end


@pytest.mark.parametrize("draft_context", [None, 40])
def test_every_prompt_length_up_to_the_context(draft_context):
    """B28: no position beyond the end in either model (their runtimes raise there), and the same tokens."""
    engine = new_engine(context=64, draft_context=draft_context)
    prompts = [ids(count) for count in range(1, 65)]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    found, expected = (engine.generate(prompts, params, gamma=gamma) for gamma in (5, 0))
    for prompt, one, other in zip(prompts, found, expected, strict=True):
        assert one.token_ids == other.token_ids, len(prompt)
        assert len(one.token_ids) == min(20, 64 - len(prompt))
        assert one.finish_reason == other.finish_reason == "length"
        assert not one.report.warnings
    assert sum(one.report.accepted for one in found) > 50


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prompts_at_and_over_the_limit(drafter):
    """B29: 63 tokens leave room for one, 64 for none; longer ones are refused, and the next one works."""
    engine = new_engine(drafter, context=64)
    for count in (65, 69, 70, 1000):
        with pytest.raises(ContextError, match=f"{count} tokens, but the model's context ends at 64"):
            engine.generate(ids(count), GREEDY)
    for count, left in ((62, 2), (63, 1), (64, 0)):
        for max_tokens in (None, 20):
            result = engine.generate(ids(count), SamplingParams(max_tokens=max_tokens, ignore_eos=True), gamma=5)
            assert (len(result.token_ids), result.finish_reason) == (left, "length")
            assert result.report.emitted == left


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_gamma_larger_than_what_is_left(drafter, count):
    """B20, B21: exactly what was asked for, and never more drafted than could be used."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    result = shared_engine(drafter).generate(CODE, params, gamma=64)
    assert result.token_ids == plain(CODE, params).token_ids
    assert (len(result.token_ids), result.finish_reason, result.report.emitted) == (count, "length", count)
    assert result.report.drafted <= max(0, count - 1) * max(1, result.report.target_passes)
    assert (result.text == "") == (count == 0)


def test_no_limit_ends_with_the_context_or_an_end_token():
    """B21."""
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    result = new_engine("own", context=64).generate(CODE, params)
    assert result.finish_reason == "length" and result.prompt_tokens + len(result.token_ids) == 64
    end = result.token_ids[12]
    ended = new_engine("own", context=64, end_tokens=[end]).generate(CODE, SamplingParams(max_tokens=None))
    assert ended.finish_reason == "stop" and ended.token_ids == result.token_ids[: result.token_ids.index(end) + 1]


# ---- ends


@pytest.mark.parametrize("gamma", [1, 4, 16])
@pytest.mark.parametrize("whose", ["model", "request"])
def test_end_token_in_an_accepted_run(whose, gamma):
    """B15, B56, B57: with its own draft everything is accepted, so the end falls into a run of gamma + 1 tokens."""
    text = plain(CODE).token_ids
    for end in set(text):
        place = text.index(end)
        engine = new_engine("own", end_tokens=[end] if whose == "model" else [])
        params = SamplingParams(max_tokens=20, stop_token_ids=[end] if whose == "request" else [])
        with engine.stream(CODE, params, gamma=gamma) as stream:
            streamed = [token for event in stream for token in event.token_ids]
        result = stream.result
        assert result.token_ids == streamed == text[: place + 1]
        assert result.finish_reason == "stop"
        report = result.report
        assert (report.emitted, report.target_passes) == (place + 1, place // (gamma + 1) + 1)
        assert report.accepted == report.tested == place + 1 - (place + 1) // (gamma + 1)


def test_ignoring_end_tokens_goes_on_as_plain_decoding_does():
    """B16: the model's own ends are ignored, those of the request are not."""
    text = plain(CODE).token_ids
    engine = new_engine("own", end_tokens=[text[3]])
    assert engine.generate(CODE, SamplingParams(max_tokens=20, ignore_eos=True)).token_ids == text
    params = SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=[text[8]])
    assert engine.generate(CODE, params).token_ids == text[: text.index(text[8]) + 1]


@pytest.mark.parametrize("drafter", ["none", "own"])
def test_end_as_the_last_token_allowed_is_a_stop(drafter):
    """B49: the same with and without drafting."""
    text = plain(CODE).token_ids
    count = next(i for i in range(5, 20) if text[i] not in text[:i])
    engine = new_engine(drafter, end_tokens=[text[count]])
    assert engine.generate(CODE, SamplingParams(max_tokens=count + 1)).finish_reason == "stop"
    assert engine.generate(CODE, SamplingParams(max_tokens=count)).finish_reason == "length"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_stop_strings_wherever_they_begin_and_end(drafter):
    """B17, B18, B36: in the middle of a run, across tokens, inside a token; the first occurrence counts."""
    engine, whole = shared_engine(drafter), plain(CODE)
    tokenizer = engine.target.tokenizer
    stops = [whole.text[start : start + size] for start in range(0, len(whole.text) - 8, 3) for size in (1, 2, 7)]
    params = [dataclasses.replace(GREEDY, stop=[stop, "\0"]) for stop in stops]
    for stop, result in zip(stops, engine.generate([CODE] * len(stops), params, gamma=16), strict=True):
        assert result.text == whole.text[: whole.text.find(stop)], stop
        assert result.finish_reason == "stop"
        needed = next(n for n in range(21) if len(tokenizer.decode(whole.token_ids[:n])) >= len(result.text))
        assert result.token_ids == whole.token_ids[:needed]
        assert result.report.emitted == needed
        assert 0 <= result.report.accepted <= min(needed, result.report.tested)
        if drafter == "own":  # every 17th token is the target's own
            assert result.report.accepted == needed - needed // 17


# ---- drafters that cannot be used


def test_drafter_that_raises_leaves_plain_decoding_and_one_warning(monkeypatch):
    engine = new_engine()

    def broken(*args):
        raise RuntimeError("the draft's memory is gone")

    monkeypatch.setattr(engine._loop._drafter, "propose", broken)
    prompts = [CODE, ids(5), "import os"]
    for prompt, result in zip(prompts, engine.generate(prompts, GREEDY), strict=True):
        assert result.token_ids == plain(prompt).token_ids
        assert len(result.report.warnings) == 1 and "the draft's memory is gone" in result.report.warnings[0]
        assert (result.report.drafted, result.report.alpha) == (0, None)
    assert open_slots(engine) == 0
    monkeypatch.undo()
    assert engine.generate(CODE, GREEDY).report.drafted > 0


def test_draft_cache_that_cannot_be_allocated(monkeypatch):
    """B54: plain decoding with a warning; nothing hangs and nothing is left."""
    engine = new_engine()

    def full(capacity):
        raise MemoryError("no room for the draft's cache")

    monkeypatch.setattr(engine._loop._drafter._cache, "open", full)
    result = engine.generate(CODE, GREEDY)
    assert result.token_ids == plain(CODE).token_ids
    assert len(result.report.warnings) == 1 and "no room" in result.report.warnings[0]
    assert open_slots(engine) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"drafter": "draft_model"}, "needs a draft model"),
        ({"drafter": "lookup", "draft": "tiny-draft"}, "takes no draft model"),
        ({"drafter": "medusa9"}, "drafter must be one of"),
        ({"accept": "maybe"}, "accept must be one of"),
        ({"gamma": -1}, "gamma must be"),
        ({"gamma": 2.0}, "gamma must be"),
        ({"gamma": True}, "gamma must be"),
        ({"max_batch": 0}, "max_batch must be"),
        ({"max_batch": None}, "max_batch must be"),
        ({"options": {"depth": 3}}, "has no option 'depth'; it has .*min_match"),
        ({"options": {"min_match": 0}}, "min_match must be at least 1"),
        ({"weights": "int3"}, "weights must be"),
        ({"backend": "abacus"}, "backend must be"),
        ({"context": 0}, "context must lie between 1 and the model's 1024"),
        ({"context": 1025}, "context must lie between 1 and the model's 1024"),
    ],
)
def test_what_cannot_be_used_is_refused_at_load(arguments, words):
    """B60: never a silent fall-back to something else."""
    with pytest.raises((ParameterError, DrafterError), match=words):
        load("tiny", **arguments)


def test_draft_of_another_vocabulary_is_refused_at_load():
    """B24, B25, B60."""
    fewer = dataclasses.replace(model("tiny-draft"), tokenizer=_Words(1000), name="fewer")
    with pytest.raises(VocabularyError, match="1024 tokens and fewer has 1000"):
        load(model(), fewer)


class _Words:
    def __init__(self, size):
        self.size = size

    def tokens(self):
        return model().tokenizer.tokens()[: self.size]


def test_draft_with_a_context_shorter_than_the_one_asked_for():
    """The context given is the target's; a shorter draft drafts less near the end."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    engine = load(model("tiny", 100), model("tiny-draft", 50), controller="fixed")
    result = engine.generate(CODE, params)
    assert result.token_ids == plain(CODE, params).token_ids
    assert result.report.drafted > 0 and not result.report.warnings


# ---- seeds


SAMPLED = SamplingParams(temperature=1.0, seed=42, max_tokens=20)


@pytest.mark.parametrize("accept", ["match", "ratio"])
def test_the_same_seed_five_times_and_another_one(accept):
    """B31."""
    engine = shared_engine("draft_model", 8, accept)
    five = [engine.generate(CODE, SAMPLED).token_ids for _ in range(5)]
    assert five == [five[0]] * 5
    assert engine.generate(CODE, dataclasses.replace(SAMPLED, seed=43)).token_ids != five[0]
    crowd = [SamplingParams(temperature=1.0, max_tokens=20)] * 3
    assert engine.generate([CODE] * 4, [crowd[0], SAMPLED, *crowd[1:]])[1].token_ids == five[0]


def test_unseeded_answers_differ_and_their_seeds_bring_them_back():
    """B32: within a process."""
    engine = shared_engine()
    free = dataclasses.replace(SAMPLED, seed=None)
    twenty = [engine.generate(CODE, free) for _ in range(20)]
    assert len({one.text for one in twenty}) >= 15
    again = [engine.generate(CODE, dataclasses.replace(SAMPLED, seed=one.report.seed)) for one in twenty[:3]]
    assert [one.token_ids for one in again] == [one.token_ids for one in twenty[:3]]


def test_a_fresh_process_says_the_same_with_the_seed_and_something_else_without():
    """B31, B32."""
    program = (
        "import json, outpace; e = outpace.load('tiny', draft='tiny-draft', threads=1);"
        f"p = outpace.SamplingParams(temperature=1.0, seed=42, max_tokens=20); q = {CODE!r};"
        "print(json.dumps([e.generate(q, p).token_ids, [e.generate(q, outpace.SamplingParams(temperature=1.0,"
        "max_tokens=20)).token_ids for _ in range(3)]]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seeded, unseeded = json.loads(run.stdout)
    engine = shared_engine()
    assert seeded == engine.generate(CODE, SAMPLED).token_ids
    free = dataclasses.replace(SAMPLED, seed=None)
    assert unseeded != [engine.generate(CODE, free).token_ids for _ in range(3)]


# ---- calls do not touch each other


def test_gamma_of_one_call_does_not_stick():
    """B61: A, B, A."""
    engine = new_engine()

    def counts(gamma):
        result = engine.generate(CODE, GREEDY, gamma=gamma)
        return result.token_ids, result.report.gamma, result.report.drafted, result.report.target_passes

    first, second, third = counts(2), counts(8), counts(2)
    assert first == third != second
    assert first[0] == second[0]
    assert first[2] <= 2 * first[3] and second[2] <= 8 * second[3]
    assert engine.generate(CODE, GREEDY).report.gamma == engine.gamma == 4
    assert counts(0)[1:] == (0, 0, 20)


def test_rounds_never_draft_more_than_their_calls_gamma_with_two_calls_at_once():
    """B61."""
    engine = new_engine()
    alone = {gamma: engine.generate(CODE, GREEDY, gamma=gamma) for gamma in (1, 7)}
    found: list[tuple[int, Result]] = []
    _in_threads([lambda gamma=gamma: found.append((gamma, engine.generate(CODE, GREEDY, gamma=gamma)))
                 for gamma in (1, 7, 1, 7)])  # fmt: skip
    assert Counter(gamma for gamma, _ in found) == {1: 2, 7: 2}
    for gamma, result in found:
        assert result.token_ids == alone[gamma].token_ids
        assert result.report.drafted == alone[gamma].report.drafted
        assert result.report.drafted <= gamma * result.report.target_passes


def _in_threads(jobs) -> None:
    failures: list[BaseException] = []

    def guarded(job):
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "deadlock"
    assert not failures, failures


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_threads_share_an_engine(drafter):
    """B52: generating and streaming, the same prompts and others, each as alone."""
    engine = new_engine(drafter, max_batch=3)
    requests = [
        (prompt, SamplingParams(temperature=t, seed=t, max_tokens=12)) for t in (0, 1) for prompt in (CODE, "if")
    ]
    alone = [engine.generate(*request).token_ids for request in requests]
    found: dict[int, list[list[int]]] = {i: [] for i in range(4)}

    def batch(i):
        for _ in range(2):
            prompts, params = zip(*requests, strict=True)
            found[i].append([one.token_ids for one in engine.generate(list(prompts), list(params), gamma=1 + i)])

    def stream(i):
        for _ in range(2):
            found[i].append([[t for e in engine.stream(*request) for t in e.token_ids] for request in requests])

    _in_threads([lambda i=i: (batch, stream)[i % 2](i) for i in range(4)])
    assert found == {i: [alone] * 2 for i in range(4)}
    assert open_slots(engine) == 0


@pytest.mark.parametrize("max_batch", [2, 8])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_batches_equal_solo_runs_with_params_of_their_own(drafter, max_batch):
    """B51: 16 requests of different lengths, controls, stops; they join and leave as others end."""
    engine = new_engine(drafter, max_batch=max_batch)
    prompts = [[CODE, ids(1 + 3 * i), "class A:\n", "x = x"][i % 4] for i in range(16)]
    params = [
        SamplingParams(
            temperature=i % 3 / 2, seed=i, max_tokens=1 + i, top_k=[0, 5][i % 2], top_p=[1.0, 0.9][i // 2 % 2],
            min_p=[0.0, 0.05][i // 4 % 2], stop=["\n"] if i % 5 == 0 else [], ignore_eos=i % 2 == 0,
        )
        for i in range(16)
    ]  # fmt: skip
    together = engine.generate(prompts, params)
    for prompt, mine, one in zip(prompts, params, together, strict=True):
        expected = plain(prompt, mine)
        assert (one.token_ids, one.text, one.finish_reason) == (
            expected.token_ids,
            expected.text,
            expected.finish_reason,
        )
    assert open_slots(engine) == 0


def test_lists_of_params_that_do_not_fit():
    engine = shared_engine()
    with pytest.raises(ParameterError, match="2 SamplingParams were given for 3 prompts"):
        engine.generate([CODE] * 3, [GREEDY] * 2)
    with pytest.raises(ParameterError, match="one prompt takes one SamplingParams"):
        engine.generate(CODE, [GREEDY])
    for gamma in (-1, 1.5, True, "4"):
        with pytest.raises(ParameterError, match="gamma must be"):
            engine.generate(CODE, GREEDY, gamma=gamma)
    assert open_slots(engine) == 0


# ---- freeing


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [1, 2, 3, 6])
def test_whatever_ends_a_batch_frees_everything(error, after, monkeypatch):
    """During the prompt's pass or a later one: no slot stays open, and the next call works."""
    engine = new_engine(max_batch=2)
    runtime = engine.target.runtime
    left = [after]
    forward = runtime.forward

    def failing(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(runtime, "forward", failing)
    with pytest.raises(type(error)):
        engine.generate([CODE, ids(9), "if x"], GREEDY)
    assert open_slots(engine) == 0
    monkeypatch.undo()
    assert engine.generate(CODE, GREEDY).token_ids == plain(CODE).token_ids


def test_a_stream_collected_in_the_middle_of_a_round_does_not_lock_up(monkeypatch):
    """The collector may run anywhere, and closing a forgotten stream needs the engine's lock."""
    engine = new_engine()
    cycle: list[object] = [engine.stream(CODE, GREEDY)]
    next(cycle[0])  # type: ignore[call-overload]
    cycle.append(cycle)
    assert open_slots(engine) > 0
    del cycle
    propose = engine._loop._drafter.propose

    def collecting(*args):
        gc.collect()
        return propose(*args)

    monkeypatch.setattr(engine._loop._drafter, "propose", collecting)
    found = []
    _in_threads([lambda: found.append(engine.generate(CODE, GREEDY).token_ids)])
    assert found == [plain(CODE).token_ids]
    assert open_slots(engine) == 0


# ---- the report


@pytest.mark.parametrize("accept", ["match", "ratio"])
@pytest.mark.parametrize("drafter", [*DRAFTERS, "none"])
def test_the_reports_arithmetic(drafter, accept):
    engine = new_engine(drafter, accept=accept)
    engine.measure_costs()
    for t in (0, 0.7):
        result = engine.generate(CODE * 2, SamplingParams(temperature=t, seed=1, max_tokens=30, ignore_eos=True))
        report = result.report
        assert report.emitted == len(result.token_ids) == 30
        name = "draft_model" if drafter == "own" else drafter
        assert (report.drafter, report.rule, report.gamma) == (name, accept, engine.gamma)
        assert report.drafted >= report.tested >= report.accepted
        assert report.target_passes <= report.emitted <= report.target_passes + report.accepted
        assert report.block_efficiency == report.emitted / report.target_passes
        seconds = report.seconds_draft + report.seconds_target + report.seconds_sample + report.seconds_other
        assert report.seconds_decode == pytest.approx(seconds)
        assert report.tokens_per_second == pytest.approx(30 / seconds)
        assert report.seconds_prefill > 0 and report.seconds_target > 0
        everything = report.as_dict()
        assert json.loads(json.dumps(everything, allow_nan=False)) == everything
        if drafter == "none":
            assert (report.drafted, report.tested, report.alpha, report.c) == (0, 0, None, None)
            assert report.predicted_speedup is report.paper_speedup is report.one_row_seconds is None
            continue
        assert report.alpha == report.accepted / report.tested
        one, v = report.one_row_seconds, report.rows_cost
        assert one > 0 and v > 0 and sum(report.rows.values()) == report.target_passes
        assert sum((rows - 1) * passes for rows, passes in report.rows.items()) == report.drafted
        spent = sum(passes * report.pass_seconds(rows, 100) for rows, passes in report.rows.items())
        assert spent > 0 and one * v * report.target_passes == pytest.approx(report.seconds_target)
        assert report.c == pytest.approx(report.seconds_draft / report.drafted / one)
        depth, alpha = report.drafted / report.target_passes, report.alpha
        run = sum(alpha**k for k in range(round(depth) + 1)) if depth == round(depth) else None
        overhead = (report.seconds_draft + report.seconds_sample + report.seconds_other) / report.target_passes / one
        token = one + report.seconds_sample / 30 + report.seconds_other / report.target_passes  # decoded plainly
        tokens = report.block_efficiency * token / one
        assert report.predicted_speedup == pytest.approx(tokens / (v + overhead))
        if run is not None:
            assert report.paper_speedup == pytest.approx(run / (depth * report.c + 1))


def test_predictions_of_whole_depth_are_the_papers_sum():
    """Every round of a draft of its own is as deep as gamma when the length allows it: 1 + gamma tokens each."""
    engine = new_engine("own")
    engine.measure_costs()
    report = engine.generate(CODE, SamplingParams(max_tokens=25, ignore_eos=True), gamma=4).report
    assert (report.alpha, report.target_passes, report.drafted) == (1.0, 5, 20)
    assert report.paper_speedup == pytest.approx(5 / (4 * report.c + 1))


def test_a_report_runs_no_passes_and_predicts_nothing_that_is_not_known(monkeypatch):
    engine = new_engine()
    unknown = engine.generate(CODE, GREEDY).report
    engine.measure_costs()
    report = engine.generate(CODE, GREEDY).report
    monkeypatch.setattr(type(engine.target.runtime), "forward", lambda *a, **k: pytest.fail("a pass was run"))
    assert unknown.drafted and unknown.predicted_speedup is unknown.c is unknown.plain_seconds is None
    assert report.as_dict()["predicted_speedup"] == report.predicted_speedup > 0 and report.c > 0
    assert explain(report) and explain(unknown)


def test_requests_that_share_their_passes_predict_nothing():
    engine = new_engine()
    engine.measure_costs()
    for result in engine.generate([CODE, CODE * 2], GREEDY):
        assert result.report.drafted and result.report.predicted_speedup is None


def test_a_prediction_knows_earlier_requests_only():
    """Passes over more rows become dear after a request began: that is for the next one's prediction."""
    engine = new_engine()
    engine.measure_costs()
    stream = engine.open(CODE, GREEDY)
    before, one = stream.report.relative(5), stream.report.pass_seconds(1, 0)
    for _ in range(60):
        engine.cost_model.observe(5, 0.0, {}, 1, RoundSeconds(0.0, 3 * one, 0.0, 0.0, 0))
        engine.cost_model.observe(1, 0.0, {}, 1, RoundSeconds(0.0, one, 0.0, 0.0, 0))
    assert stream.report.relative(5) == before
    stream.close()
    assert engine.open(CODE, GREEDY).report.relative(5) == pytest.approx(3, rel=0.2)
    assert engine.cost_model.plain == pytest.approx(one, rel=0.2) and engine.cost_model.observed is not None


def test_the_package_offers_what_it_names():
    assert all(getattr(outpace, name) is not None for name in outpace.__all__)


@pytest.mark.parametrize("gamma", [0, 5])
@pytest.mark.parametrize("before", ["", "):"])
def test_a_stop_string_may_be_a_special_token(gamma, before):
    """Wherever it comes, also within an accepted run of drafts; its name is never in the text."""
    engine = shared_engine("draft_model")
    tokenizer = engine.target.tokenizer
    for name in tokenizer.specials.values():
        forced = SamplingParams(max_tokens=6, logit_bias={tokenizer.token_id(name): 100}, ignore_eos=True)
        result = engine.generate(CODE, dataclasses.replace(forced, stop=[name]), gamma=gamma)
        assert (result.text, result.token_ids, result.finish_reason) == ("", [], "stop")
        assert engine.generate(CODE, forced, gamma=gamma).text == ""
        end = SamplingParams(max_tokens=40, stop=[before + name, "never"])
        plain = engine.generate(CODE, dataclasses.replace(end, stop=()), gamma=0)
        stopped = engine.generate(CODE, end, gamma=gamma)
        assert name not in stopped.text and plain.text.startswith(stopped.text)
