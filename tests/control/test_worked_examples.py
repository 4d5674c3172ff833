"""The figures at the head of acceptance.py and allocation.py."""

import pytest

from outpace.control.acceptance import Acceptance, Prior
from outpace.control.allocation import Candidate, allocate
from outpace.control.cost_model import CostModel
from outpace.control.pass_costs import PassCosts
from outpace.core.types import Proposal, Verdict


def test_acceptance():
    acceptance = Acceptance(Prior(0.7, 1.0))
    acceptance.observe(4, Proposal.chain([5, 6, 7]), Verdict([0, 1], 8, "correction"))
    accept_probs, propose_probs = acceptance.forecast(4)
    assert accept_probs == pytest.approx([0.739, 0.583, 0.347, 0.138], abs=5e-4)
    assert propose_probs == pytest.approx([1.0, 1.0, 1.0, 0.667], abs=5e-4)


def test_allocation():
    target = PassCosts((1, 2, 3, 4, 5), (0.040, 0.042, 0.044, 0.050, 0.056))
    cost_model = CostModel(target, {"draft_model": PassCosts((1,), (0.006,))})
    probs, certain = (0.80, 0.64, 0.51, 0.41), (1.0,) * 4
    rates = [allocate([Candidate("draft_model", 0, n, n, probs, certain)], cost_model).rate for n in range(5)]
    assert rates == pytest.approx([25.0, 37.5, 43.6, 43.4, 42.0], abs=0.05)
    assert allocate([Candidate("draft_model", 0, 4, 0, probs, certain)], cost_model).nodes == [2]
