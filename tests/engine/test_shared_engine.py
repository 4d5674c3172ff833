"""Calls, threads and batches that share an engine do not touch each other, and free what they held."""

import gc
import threading
from collections import Counter

import pytest
from tests.helpers.requests import CODE, DRAFTERS, GREEDY, ids, plain
from tests.helpers.shipped import new_engine, open_slots, shared_engine

from outpace import Result, SamplingParams
from outpace.core.errors import ParameterError


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
    propose = engine.scheduler.loop._drafter.propose

    def collecting(*args):
        gc.collect()
        return propose(*args)

    monkeypatch.setattr(engine.scheduler.loop._drafter, "propose", collecting)
    found = []
    _in_threads([lambda: found.append(engine.generate(CODE, GREEDY).token_ids)])
    assert found == [plain(CODE).token_ids]
    assert open_slots(engine) == 0
