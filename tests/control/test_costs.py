"""What a pass costs: measured by a clock that the test turns, kept, and read again."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from tests.helpers.shipped import model

from outpace.audit.toy import ToyRuntime
from outpace.control import pass_costs as costs
from outpace.control.pass_costs import PassCosts, from_dict, load_pass_costs, measure_passes

CURVE = PassCosts((1, 2, 4, 8), (10.0, 11.0, 15.0, 31.0), cached=100, per_entry=0.01, per_entry_row=0.001)


class Clock:
    """Time that passes only while a model computes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedRuntime(ToyRuntime):
    """Takes ``cost(rows, cached)`` seconds a pass; every ``disturbed``-th one takes ten times as long."""

    def __init__(self, clock, cost, context=4096, disturbed=0):
        super().__init__(lambda prefix: np.zeros(3), 3, context)
        self._clock, self._cost, self._disturbed = clock, cost, disturbed

    def forward(self, chunks, cache, want=()):
        [chunk] = chunks
        cached, rows = cache.length(chunk.slot), len(chunk.tokens)
        cache.advance(chunk.slot, rows)
        self.forwards += 1
        slow = 10 if self._disturbed and self.forwards % self._disturbed == 0 else 1
        self._clock.now += slow * self._cost(rows, cached)


@pytest.fixture
def clock(monkeypatch):
    turned = Clock()
    monkeypatch.setattr(costs, "perf_counter", turned)
    return turned


def test_curve_between_and_beyond_its_points():
    assert [CURVE.of(n) for n in (1, 2, 4, 8)] == pytest.approx([10, 11, 15, 31])
    assert CURVE.of(3) == pytest.approx(13)
    assert CURVE.of(10) == pytest.approx(39)
    assert CURVE.relative(4) == pytest.approx(1.5)
    assert CURVE.per_prompt_token == pytest.approx(31 / 8)


def test_more_cached_entries_cost_more_for_each_row():
    assert CURVE.of(1, 1100) == pytest.approx(10 + 1000 * 0.01)
    assert CURVE.of(4, 1100) == pytest.approx(15 + 1000 * (0.01 + 3 * 0.001))
    assert CURVE.base(4) + CURVE.attention(4, 100) == pytest.approx(15)


def test_one_point_is_a_flat_curve():
    assert PassCosts((1,), (2.0,)).of(7) == 2.0


def test_a_curve_between_and_beyond_its_points():
    curve = PassCosts.of_points({3: 2.0, 1: 1.0, 4: 4.0})
    assert [curve.of(n) for n in (1, 2, 3.5, 8)] == [1.0, 1.5, 3.0, 12.0] and curve.by_rows == {1: 1.0, 3: 2.0, 4: 4.0}


def test_measured_costs_are_the_clocks(clock):
    cost = lambda rows, cached: 1e-3 + 2e-4 * rows + 1e-6 * cached + 1e-7 * cached * (rows - 1)  # noqa: E731
    found = measure_passes(TimedRuntime(clock, cost))
    for rows in (1, 3, 8, 32):
        assert found.of(rows, 700) == pytest.approx(cost(rows, 700))
    assert found.per_entry == pytest.approx(1e-6) and found.per_entry_row == pytest.approx(1e-7)


def test_disturbed_passes_do_not_count(clock):
    found = measure_passes(TimedRuntime(clock, lambda rows, cached: 1e-3 * rows, disturbed=7))
    assert found.seconds == pytest.approx([1e-3 * rows for rows in found.rows])


def test_a_size_that_is_disturbed_every_time_costs_no_more_than_a_larger_one(clock):
    found = measure_passes(TimedRuntime(clock, lambda rows, cached: 9.0 if rows == 2 else 1e-3 * rows))
    assert found.of(2) == pytest.approx(found.of(3)) and found.of(3) == pytest.approx(3e-3)


def test_a_machine_that_becomes_slower_between_passes_does_not_bend_the_curve(clock):
    """One row in a fast moment and the others in slow ones would make rows look dear."""
    cost = lambda rows, cached: (1e-3 + 1e-4 * rows) * (1.0 if clock.now < 4e-3 else 1.5)  # noqa: E731
    found = measure_passes(TimedRuntime(clock, cost))
    assert [found.relative(n) for n in (2, 4, 8)] == pytest.approx([1.2 / 1.1, 1.4 / 1.1, 1.8 / 1.1])


def test_a_rare_quick_second_is_not_what_rows_are_compared_in(clock):
    """Where memory is quick now and then, one row gains from it and eight do not."""

    def cost(rows, cached):
        quick = rows == 1 and clock.now % 0.02 < 0.004
        return 0.5e-3 if quick else 1e-3 if rows == 1 else 2e-3

    found = measure_passes(TimedRuntime(clock, cost))
    assert found.relative(8) == pytest.approx(2) and found.of(1) == pytest.approx(1e-3)


def test_a_text_is_read_without_logits(clock):
    class WithHead(TimedRuntime):
        def forward(self, chunks, cache, want=()):
            super().forward(chunks, cache, want)
            clock.now += 1e-3 * (len(chunks[0].tokens) - chunks[0].logits_from)

    found = measure_passes(WithHead(clock, lambda rows, cached: 1e-3 * rows))
    assert found.of(8) == pytest.approx(16e-3) and found.per_prompt_token == pytest.approx(1e-3)


def test_a_slow_model_is_not_measured_for_long(clock):
    found = measure_passes(TimedRuntime(clock, lambda rows, cached: 0.1 * rows), limit_seconds=1.0)
    assert found.rows[0] == 1 and 8 in found.rows and 32 not in found.rows
    assert clock.now < 15


def test_a_short_context_is_measured_as_far_as_it_goes(clock):
    found = measure_passes(TimedRuntime(clock, lambda rows, cached: 1e-3 * rows, context=8))
    assert found.rows == (1, 2, 3, 4) and found.cached == 4


def test_costs_are_kept_until_something_changes(tmp_path, monkeypatch):
    measured = []

    def measure(runtime):
        measured.append(runtime)
        return CURVE

    monkeypatch.setattr(costs, "measure_passes", measure)
    tiny = model("tiny")
    assert load_pass_costs(tiny, tmp_path) == load_pass_costs(tiny, tmp_path) == CURVE
    assert len(measured) == 1
    load_pass_costs(dataclasses.replace(tiny, weights="bf16"), tmp_path)
    assert len(measured) == 2
    [first, _] = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    first.write_text("{broken")
    assert load_pass_costs(tiny, tmp_path) == CURVE and len(measured) == 3
    stored = json.loads(first.read_text())
    stored["costs"]["seconds"][0] = -1.0
    first.write_text(json.dumps(stored))
    load_pass_costs(tiny, tmp_path)
    assert len(measured) == 4


def test_a_place_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "measure_passes", lambda runtime: CURVE)
    (tmp_path / "file").write_text("")
    assert load_pass_costs(model("tiny"), tmp_path / "file" / "below") == CURVE


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": [], "seconds": []},
        {"rows": [1, 2], "seconds": [1.0]},
        {"rows": [2, 1], "seconds": [1.0, 1.0]},
        {"rows": [1], "seconds": [0.0]},
    ],
)
def test_no_curve_is_made_of_nonsense(wrong):
    with pytest.raises(ValueError, match="no cost curve"):
        from_dict(wrong)


def test_a_curve_survives_being_written():
    assert from_dict(json.loads(json.dumps(dataclasses.asdict(CURVE)))) == CURVE
