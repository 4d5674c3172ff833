"""A race: the same request in several engines, side by side."""

import pytest
from tests.helpers.shipped import model

from outpace import SamplingParams, load
from outpace.bench.compare import compare, race
from outpace.commands.generate import comparison_table
from outpace.core.errors import ContextError
from outpace.core.types import RoundSeconds

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPT = "def add(a, b):"


@pytest.fixture(scope="module")
def engines():
    target = model()
    return {"plain": load(target, drafter="none"), "copies": load(target, drafter="lookup", controller="fixed")}


def test_each_answers_the_whole_request(engines):
    found = race(engines, PROMPT, PARAMS, {"copies": 3})
    assert found["plain"].result.token_ids == found["copies"].result.token_ids
    assert len(found["plain"].result.token_ids) == 24
    assert found["copies"].result.report.gamma == 3 and found["plain"].result.report.gamma == 0
    assert all(0 < one.first < one.seconds for one in found.values())


def test_they_go_on_side_by_side(engines, monkeypatch):
    turns = []
    for name, engine in engines.items():
        step = engine.step
        monkeypatch.setattr(engine, "step", lambda name=name, step=step: (turns.append(name), step())[1])
    found = race(engines, PROMPT, PARAMS, {"copies": 0})
    passes = {name: one.result.report.target_passes for name, one in found.items()}
    half = turns[: len(turns) // 2]
    assert abs(half.count("plain") - half.count("copies")) <= 2 and passes["plain"] == passes["copies"]


def test_a_refused_request_leaves_nothing_open(engines):
    """The second engine has too little context: what the first one had opened is closed."""
    small = load(model(context=64), drafter="none")
    with pytest.raises(ContextError):
        race({"plain": engines["plain"], "small": small}, [1] * 100, PARAMS)
    assert engines["plain"].open_requests == small.open_requests == (0, 0)


def test_repeats_draft_from_no_earlier_answer():
    """Tokens a pass were 2.1, 2.9, 4.6: the pool had seen the answer before."""
    engine = load(model(), drafter="lookup", gamma=8, drafter_options={"lookup": {"pool": 50000}})
    seen = []
    compare(engine, PROMPT, PARAMS, repeats=3, show=lambda mode, result: seen.append((mode, result.report)))
    passes = [report.target_passes for mode, report in seen if mode == "speculative"]
    assert len(passes) == 3 and len(set(passes)) == 1


def test_nothing_drafted_is_no_gain():
    engine = load(model(), drafter="lookup", gamma=3, drafter_options={"lookup": {"min_match": 64}})
    found = compare(engine, PROMPT, PARAMS, repeats=1)
    assert found.speculative.report.drafted == 0 and found.speedup is None and found.ratios == []
    table = comparison_table(found)
    assert "predicted" not in table and "x" not in table.split("tok/s")[-1].splitlines()[0]
    assert "drafted nothing" in table


def test_predictions_know_nothing_of_the_prompt_compared(monkeypatch):
    """What its own rounds say of passes, is not in the reports of its repeats: here they say that rows are dear."""
    engine = load(model(), model("tiny-draft"), gamma=3)
    known = []
    real = race

    def racing(engines, prompt, params, gamma=None, tenant=""):
        if tenant.startswith("repeat"):
            known.append(engine.cost_model.pass_seconds()(4, 10))
        found = real(engines, prompt, params, gamma, tenant)
        for rows in (1, 4) * 200 if tenant.startswith("repeat") else ():
            engine.cost_model.observe(rows, 0.0, {}, 1, RoundSeconds(0.0, 10.0**rows, 0.0, 0.0, 0))
        return found

    monkeypatch.setattr("outpace.bench.compare.race", racing)
    reports = []
    compare(engine, PROMPT, PARAMS, repeats=2, show=lambda mode, result: reports.append(result.report))
    assert {report.pass_seconds(4, 10) for report in reports} == {known[0]} and known[1] > 2 * known[0]
    assert all(report.predicted_speedup for report in reports if report.drafted)
