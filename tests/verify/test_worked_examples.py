"""The numbers that head ``ratio`` and ``block``."""

import pytest
from tests.contract.test_rules import distribution

from outpace.core.types import Proposal
from outpace.verify import block, ratio


def test_ratio():
    p, q = distribution(0.1, 0.3, 0.4, 0.2), distribution(0.4, 0.3, 0.2, 0.1)
    left = ratio.residual(p, q)
    assert [left.prob(token) for token in range(4)] == pytest.approx([0, 0, 2 / 3, 1 / 3])
    for token in range(4):
        accepted = q.prob(token) * min(1, p.prob(token) / q.prob(token))
        assert accepted + 0.4 * 0.75 * left.prob(token) == pytest.approx(p.prob(token))


def test_block():
    first, second = (distribution(0.2, 0.8), distribution(0.5, 0.5)), (distribution(0.1, 0.9), distribution(0.7, 0.3))
    found = {}
    for token in (0, 1):
        proposal = Proposal.chain([0, token], [first[1], second[1]])
        found[token] = [accept for _, accept in block.chances(proposal, [first[0], second[0]])]
    assert found == {0: pytest.approx([0.091, 0.057], abs=1e-3), 1: pytest.approx([0.091, 1.0], abs=1e-3)}
    any_accepted = [1 - (1 - alone) * (1 - both) for alone, both in found.values()]
    assert 0.7 * any_accepted[0] + 0.3 * any_accepted[1] == pytest.approx(0.4)
