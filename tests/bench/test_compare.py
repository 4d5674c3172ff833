"""A race: the same request in several engines, side by side."""

import pytest
from tests.helpers.shipped import model

from outpace import SamplingParams, load
from outpace.bench.compare import race
from outpace.core.errors import ContextError

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
