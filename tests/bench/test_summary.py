"""Figures from runs whose answers are known."""

from typing import Any

import pytest

from outpace.bench.measure import Measurement, merge
from outpace.bench.summary import EVERYTHING, Spread, acceptance_by_depth, rows, speed_over_time
from outpace.bench.tables import HEAD, cells


def report(passes: int, drafted: int, tested: int, accepted: int, draft: float, target: float) -> dict[str, Any]:
    seconds = {"seconds_draft": draft, "seconds_target": target, "seconds_sample": 0.0, "seconds_other": 0.0}
    emitted = passes + accepted
    return {"target_passes": passes, "drafted": drafted, "tested": tested, "accepted": accepted, "emitted": emitted,
            "draft_passes": drafted // 2, **seconds}  # fmt: skip


def run(contender: str, speed: float, about: dict[str, Any], prompt: str = "p", block: str = "") -> dict[str, Any]:
    return {"contender": contender, "prompt": prompt, "category": "code", "temperature": 0.0, "repeat": 0,
            "block": block, "tokens": [1] * 11, "tokens_per_second": speed, "first_tokens": 1, "first_seconds": 1.0,
            "seconds": 1.0 + 10 / speed, "steps": [], "origins": [], "report": about,
            "same_as_plain": None if contender == "plain" else True}  # fmt: skip


def measurement(*runs: dict[str, Any]) -> Measurement:
    found = Measurement({"command": "c"}, {})
    found.costs = {"target": {1: 0.1, 3: 0.12, 5: 0.2}}
    found.bytes_read, found.bandwidth = {"target": 1000, "draft": 100}, [10000.0, 20000.0, 30000.0]
    found.runs = list(runs)
    return found


PLAIN = report(passes=10, drafted=0, tested=0, accepted=0, draft=0.0, target=1.0)
DRAFTED = report(passes=5, drafted=10, tested=8, accepted=6, draft=0.2, target=0.6)


def test_a_row_has_the_figures_of_its_formulas() -> None:
    found = rows(measurement(run("plain", 10.0, PLAIN), run("draft_model", 15.0, DRAFTED)))
    row = next(r for r in found if r.contender == "draft_model" and r.category == "code")
    assert row.gain is not None and row.gain.median == pytest.approx(1.5)
    assert row.alpha == pytest.approx(0.75)
    assert row.block_efficiency == pytest.approx(11 / 5)
    assert row.depth == pytest.approx(2.0)
    assert row.c == pytest.approx(0.02 / 0.1)
    assert row.rows_cost == pytest.approx(1.2)
    assert row.paper == pytest.approx((1 + 0.75 + 0.75**2) / (1 + 2 * 0.2))
    assert row.ours == pytest.approx(11 / 5 / (1.2 + 0.2 / 5 / 0.1))
    assert row.phases is not None and row.phases["draft"] == pytest.approx(0.25)
    assert row.roofline == pytest.approx((5 * 1000 + 5 * 100) / 20000 / 0.8)
    assert row.same == (1, 1)
    assert {r.category for r in found} == {"code", EVERYTHING}


def test_a_file_that_does_not_say_how_often_the_draft_was_read_has_no_roofline() -> None:
    old = {name: value for name, value in DRAFTED.items() if name != "draft_passes"}
    found = rows(measurement(run("plain", 10.0, PLAIN), run("draft_model", 15.0, old)))
    assert {row.contender: row.roofline is None for row in found} == {"plain": False, "draft_model": True}


def test_our_prediction_knows_nothing_of_the_plain_runs_and_what_both_waste() -> None:
    wasting, slow = DRAFTED | {"seconds_other": 0.5}, PLAIN | {"seconds_target": 9.0, "seconds_other": 1.0}
    found = rows(measurement(run("plain", 10.0, slow), run("draft_model", 15.0, wasting)))
    row = next(r for r in found if r.contender == "draft_model")
    assert row.ours == pytest.approx(11 * (0.1 + 0.5 / 5) / (0.2 + 0.6 + 0.5))


def test_rows_that_a_report_tells_are_priced_one_by_one() -> None:
    told = DRAFTED | {"rows": {"1": 2, "5": 2, "3": 1}}
    row = next(r for r in rows(measurement(run("draft_model", 15.0, told))) if r.contender == "draft_model")
    assert row.rows_cost == pytest.approx((2 * 1.0 + 2 * 2.0 + 1.2) / 5)


def test_what_drafted_nothing_has_no_gain() -> None:
    idle = PLAIN | {"target_passes": 11, "emitted": 11}
    found = rows(measurement(run("plain", 10.0, PLAIN), run("auto", 13.0, idle)))
    assert all(row.gain is None and row.ours is None for row in found if row.contender == "auto")


def test_gains_pair_runs_of_the_same_task_and_block_only() -> None:
    found = rows(
        measurement(
            run("plain", 10.0, PLAIN, block="0"),
            run("plain", 40.0, PLAIN, block="1"),
            run("auto", 20.0, DRAFTED, block="0"),
            run("auto", 40.0, DRAFTED, block="1"),
            run("auto", 99.0, DRAFTED, prompt="without plain"),
        )
    )
    row = next(r for r in found if r.contender == "auto" and r.category == "code")
    assert row.gain is not None and (row.gain.low, row.gain.high, row.gain.count) == (1.25, 1.75, 2)


def test_what_another_engine_tells() -> None:
    found = rows(measurement(run("plain", 10.0, PLAIN), run("peer draft 3", 5.0, {"drafted": 8, "accepted": 2})))
    row = next(r for r in found if r.contender == "peer draft 3")
    assert row.alpha == 0.25 and row.ours is None and row.gain is not None and row.gain.median == 0.5


def test_depths_are_counted_from_where_tokens_came_from() -> None:
    origins = ["lookup", "lookup", "correction", "draft_model", "bonus", "correction", "plain", "lookup"]
    assert acceptance_by_depth([{"origins": origins}]) == [(1, 3, 4), (2, 1, 1), (3, 0, 1)]


def test_speed_over_time_counts_only_who_is_still_going_on() -> None:
    fast, slow = [[0.0, 1], [1.0, 11]], [[0.0, 1], [1.0, 6], [2.0, 11]]
    assert speed_over_time([{"steps": fast}, {"steps": slow}], 1.5) == [(0.75, 7.5), (2.25, 5.0)]


def test_quartiles() -> None:
    assert Spread.of([None, 4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([None]) is None


def test_parts_are_merged_without_mixing_their_pairs() -> None:
    parts = [measurement(run("plain", s, PLAIN), run("auto", 20.0, DRAFTED)) for s in (10.0, 40.0)]
    whole = merge(parts)
    assert len(whole.runs) == 4 and not whole.complete
    gains = [r.gain for r in rows(whole) if r.contender == "auto" and r.category == "code"]
    assert gains[0] is not None and (gains[0].low, gains[0].high) == (0.875, 1.625)


def test_a_figure_of_one_pair_says_so() -> None:
    found = rows(measurement(run("plain", 10.0, PLAIN), run("draft_model", 15.0, DRAFTED)))
    drafted = cells(next(row for row in found if row.contender == "draft_model"))
    assert drafted[HEAD.index("quartiles")] == "-" and drafted[HEAD.index("quartiles (pairs)")] == "- (1)"
