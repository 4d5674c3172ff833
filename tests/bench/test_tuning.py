"""What `outpace tune` calls faster, and what it saves."""

from __future__ import annotations

import pytest
from tests.helpers.shipped import model

from outpace import LoadOptions, SamplingParams, load
from outpace.bench import tuning
from outpace.bench.contenders import Ours
from outpace.bench.tuning import Found, Way, lower_end, plan_of, rank
from outpace.commands.tune import ranking


def found(name: str, ratios: list[float], drafted: int = 50) -> Found:
    return Found(Way(name), ratios, 1.5, drafted, 0.7, 1.5)


SURE = found("sure", [1.1, 1.2, 1.05, 1.3, 1.2, 1.01])
LUCKY = found("lucky", [1.28, 0.73, 1.08, 2.0, 3.0, 2.5])
IDLE = found("idle", [1.28, 1.1, 1.08, 1.2, 1.1, 1.3], drafted=0)
FEW = found("few", [1.5, 1.5, 1.5, 1.5, 1.5])


@pytest.mark.parametrize(
    ("count", "place"), [(0, None), (5, None), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5)]
)
def test_lower_ends_are_those_of_the_sign_test(count: int, place: int | None) -> None:
    """The places are those of published tables of 95% intervals for a median."""
    ratios = [1 + 0.1 * i for i in range(count)]
    assert lower_end(ratios[::-1]) == (None if place is None else ratios[place])


def test_only_what_is_surely_faster_is_saved_and_it_stands_first() -> None:
    ranked = rank([LUCKY, IDLE, FEW, SURE])
    assert ranked[0] is SURE
    assert plan_of("tiny", ranked, LoadOptions()).options.drafters == ("sure",)
    for others in ([LUCKY], [IDLE], [FEW], [LUCKY, IDLE, FEW], []):
        plan = plan_of("tiny", rank(others), LoadOptions())
        chosen = plan.options
        assert (chosen.drafters, chosen.gamma, chosen.controller) == (("none",), 0, "fixed")


def test_the_table_says_how_sure_each_figure_is() -> None:
    lines = ranking(rank([LUCKY, IDLE, SURE])).splitlines()
    assert [line.split()[0] for line in lines] == ["way", "sure", "plain", "lucky", "idle"]
    assert "1.01 to 1.30 in 6 pairs" in lines[1] and "0.73 to 3.00 in 6 pairs" in lines[3]
    assert "x" not in lines[4].removeprefix("idle") and "nothing was drafted" in lines[4]
    assert "nothing is surely faster" in ranking([LUCKY])


def test_no_answer_can_be_drafted_from_an_earlier_one_to_the_same_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second answer is copied whole: that is the pool's gain on a request that is asked twice. What a drafter
    keeps of finished requests serves their own tenant only (tests/drafters/test_lookup.py)."""
    asked = []
    race = tuning.race

    def racing(engines, prompt, params, gamma=None, tenant=""):  # type: ignore[no-untyped-def]
        asked.append((prompt, tenant))
        return race(engines, prompt, params, gamma, tenant)

    monkeypatch.setattr(tuning, "race", racing)
    target, params = model(), SamplingParams(max_tokens=8)
    plain = load(target, drafter="none")
    found, engine = tuning.try_way(Way("lookup"), target, plain, ["def add(", "class A"], params, LoadOptions(), 3)
    assert engine is not None and len(found.ratios) == 6
    tuning.measured_points(plain, engine, ["def add("], params, lambda line: None)
    assert len(set(asked)) == len(asked) >= 12


def test_a_contender_of_the_bench_drafts_from_no_answer_to_the_same_prompt() -> None:
    lookup = Ours(
        "lookup", load(model(), drafter="lookup", gamma=8, drafter_options={"lookup": {"pool": 50000}}), "lookup", 8
    )
    prompt = lookup.engine.encode("def add(a, b):")
    passes = [lookup.run(prompt, 40, 0.0, 1).report["target_passes"] for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]
