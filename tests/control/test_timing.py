"""v(rows) from the rounds of the last minutes."""

import pytest

from outpace.control.drift import RowCostCorrection


def test_pairs_cancel_the_machines_speed_and_medians_its_interruptions():
    now = [0.0]
    ratios = RowCostCorrection(lambda: now[0])
    for round_ in range(40):
        now[0] += 0.5
        speed = 1.0 if round_ < 20 else 3.0  # the machine becomes slower
        held_up = 20.0 if round_ % 7 == 3 else 1.0
        ratios.observe(1, 1.0 * speed, 1.0)
        ratios.observe(5, 2.4 * speed * held_up, 2.0)  # the curve has v(5) = 2
    assert ratios.factors() == {3: pytest.approx(1.2)}


def test_one_row_passes_of_long_ago_are_no_pairs():
    now = [0.0]
    ratios = RowCostCorrection(lambda: now[0])
    ratios.observe(1, 1.0, 1.0)
    now[0] = 60.0
    ratios.observe(5, 9.0, 2.0)
    assert ratios.factors() == {}


def test_a_few_pairs_do_not_outweigh_the_curve():
    ratios = RowCostCorrection(lambda: 0.0)
    for _ in range(4):
        ratios.observe(1, 1.0, 1.0)
        ratios.observe(5, 9.0, 2.0)
    assert ratios.factors() == {3: 1.0}
