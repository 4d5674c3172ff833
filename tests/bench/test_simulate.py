"""The simulator against the paper's closed forms, and the controller's choices in it."""

from __future__ import annotations

import random

import pytest

from outpace.bench.simulate import Logged, Truth, best_gamma, by_chance, operations, simulate, speedup
from outpace.control.controller import AutoController
from outpace.control.pass_costs import PassCosts
from outpace.core.report import expected_tokens

FLAT = PassCosts((1, 16), (1.0, 1.0))
STEEP = PassCosts((1, 2, 4, 8, 16), (1.0, 1.5, 2.5, 4.5, 8.5))
USUAL = PassCosts((1, 2, 4, 8, 16), (1.0, 1.1, 1.3, 1.8, 3.0))
DRAFT = PassCosts((1, 32), (0.1, 0.32))


@pytest.mark.parametrize(
    ("alpha", "gamma", "more", "faster"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_the_papers_table(alpha, gamma, more, faster):
    """2211.17192, table 1: operations and speed with a draft that costs nothing."""
    assert operations(alpha, gamma, 0.0) == pytest.approx(more, abs=0.006)
    assert speedup(alpha, gamma, 0.0) == pytest.approx(faster, abs=0.006)


def test_there_is_a_gamma_that_pays_exactly_when_alpha_is_above_c():
    """2211.17192, corollary 3.9, and its bound at gamma 1."""
    for alpha in (0.1, 0.3, 0.5, 0.7, 0.9):
        for c in (0.05, 0.2, 0.4, 0.6, 0.8):
            assert (best_gamma(alpha, c) > 0) == (alpha > c)
            if alpha > c:
                assert speedup(alpha, best_gamma(alpha, c), c) >= (1 + alpha) / (1 + c) - 1e-12


def test_rows_that_cost_make_the_best_gamma_smaller():
    for alpha in (0.6, 0.8, 0.9):
        assert best_gamma(alpha, 0.1, USUAL.relative) <= best_gamma(alpha, 0.1)
    assert best_gamma(0.4, 0.1, STEEP.relative) == 0


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("gamma", [1, 4, 7])
def test_simulation_is_the_closed_form(alpha, gamma):
    truth = Truth(USUAL, {"draft": PassCosts((1,), (0.1,))})
    found = simulate({"draft": by_chance(alpha, seed=gamma)}, truth, 20_000, gamma=gamma)
    assert found.tokens_per_pass == pytest.approx(expected_tokens(alpha, gamma), rel=0.02)
    assert 20_000 / found.seconds == pytest.approx(speedup(alpha, gamma, 0.1, USUAL.relative), rel=0.02)
    ran = found.drafted * 0.1 + found.drafted + found.rounds  # a draft's step costs 0.1 of a target's row
    assert ran / found.tokens == pytest.approx(operations(alpha, gamma, 0.1), rel=0.02)


def test_chances_by_depth():
    found = simulate({"draft": by_chance([0.9, 0.1])}, Truth(FLAT), 20_000, gamma=2)
    assert found.tokens_per_pass == pytest.approx(1 + 0.9 + 0.09, rel=0.02)


def test_a_log_is_replayed_exactly():
    draft = Logged([4, 4, 0, 4, 4, 4], [2, 1, 0, 0, 9, 9])
    found = simulate({"draft": draft}, Truth(FLAT, {"draft": DRAFT}), 6, gamma=3)
    # 2 drafts of 3 and a token; then nothing of 2; then one of the one that is still allowed, and a token.
    assert (found.rounds, found.drafted, found.accepted, found.tokens) == (3, 6, 3, 6)


def test_a_draft_reads_its_own_last_token_late_and_draws_each_token():
    truth = Truth(FLAT, {"draft": PassCosts((1, 2), (0.1, 0.15))}, draw=0.01)
    all_stand = {"draft": Logged([2] * 7, [2] * 7)}
    drafting = (0.1 + 0.1 + 0.02) + (0.15 + 0.1 + 0.02)  # two rounds of two tokens; the second begins two behind
    found = simulate(all_stand, truth, 7, gamma=2)
    assert found.seconds - simulate(all_stand, Truth(FLAT), 7, gamma=2).seconds == pytest.approx(drafting)
    one_stands = {"draft": Logged([2] * 5, [1] * 5)}  # after a refusal it is one behind
    found = simulate(one_stands, truth, 5, gamma=2)
    assert found.seconds - simulate(one_stands, Truth(FLAT), 5, gamma=2).seconds == pytest.approx(2 * 0.22)


def run(alpha, target, *, controller, tokens=400, gamma=16, seed=0, noise=0.05, prompt=20, number=0):
    rng = random.Random(seed)
    truth = Truth(target, {"draft": DRAFT})
    return simulate({"draft": by_chance(alpha, seed)}, truth, tokens, controller=controller, gamma=gamma,
                    prompt=prompt, number=number, noise=lambda: rng.lognormvariate(0, noise))  # fmt: skip


def auto(target):
    return AutoController(target, {"draft": DRAFT}, clock=lambda: 0.0)


@pytest.mark.parametrize("target", [FLAT, USUAL, STEEP], ids=["flat", "usual", "steep"])
@pytest.mark.parametrize("alpha", [0.05, 0.4, 0.6, 0.8, 0.95])
def test_the_controller_is_near_the_best_fixed_gamma_and_never_slower_than_plain(alpha, target):
    controller = auto(target)
    run(alpha, target, controller=controller, seed=99)
    seeds = range(4)
    mine = sum(run(alpha, target, controller=controller, seed=s, number=s + 1).seconds for s in seeds)
    plain, *fixed = (
        sum(run(alpha, target, controller=None, gamma=g, seed=s).seconds for s in seeds) for g in (0, *range(1, 13))
    )
    assert plain / mine > 0.97
    assert min(plain, *fixed) / mine > 0.95


def test_the_controller_knows_within_a_few_rounds():
    nodes = run(0.95, USUAL, controller=auto(USUAL), tokens=60).nodes
    assert nodes[0] == 0 and max(nodes[1:8]) >= 4
    nodes = run(0.05, USUAL, controller=auto(USUAL), tokens=60).nodes
    assert nodes[7:10] == [0, 0, 0] and sum(nodes[10:]) <= 6  # three tries of two nodes in fifty rounds
