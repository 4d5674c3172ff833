"""Typical acceptance: what stands, which path is taken, and that its distribution is another than the target's."""

import math

import numpy as np
import pytest
from tests.helpers.toys import GREEDY, Scripted, decode, distance, plain, remembered, session, top_tree

from outpace.audit.toy import hashed_logits
from outpace.core.types import Distribution, Proposal
from outpace.sampling.random_source import KeyedRandomSource
from outpace.verify.typical import Config, Typical, plausible

typical = Typical(Config())
TARGET = remembered(hashed_logits(3, 5, sharpness=1.0))


def distribution(*probs: float) -> Distribution:
    return Distribution(np.array(probs, dtype=np.float64))


def test_the_threshold_is_the_papers():
    """min(epsilon, delta exp(-H)): the first where the target is sure, the second where it is not."""

    def accepted(of, token):
        return plausible(of, token, Config())

    sure = distribution(0.905, 0.095, 0.0)  # exp(-H) 0.73: 0.3 of it exceeds 0.09
    assert (accepted(sure, 1), accepted(distribution(0.92, 0.08, 0.0), 1)) == (True, False)
    flat = distribution(*[1 / 20] * 20)  # exp(-H) 1/20: the threshold is 0.015
    assert accepted(flat, 7)
    assert accepted(distribution(0.016, *[0.984 / 19] * 19), 0)
    assert not accepted(distribution(0.014, *[0.986 / 19] * 19), 0)


def test_the_longest_path_that_stands_is_taken_whatever_is_more_probable():
    tree = Proposal([0, 1, 1, 2, 0], [-1, -1, 1, 2, 0])
    half = distribution(0.5, 0.3, 0.2)
    distributions = [half, distribution(0.01, 0.99, 0.0), half, half, half, half]
    verdict = typical.verify(tree, distributions, KeyedRandomSource(0), 3)
    assert (verdict.path, verdict.kind) == ([1, 2, 3], "bonus")
    verdict = typical.verify(
        Proposal.chain([2, 0, 1]), [half, distribution(0.0, 1.0, 0.0), half, half], KeyedRandomSource(0), 3
    )
    assert (verdict.path, verdict.token, verdict.kind) == ([0], 1, "correction")


def test_distributions_off_the_path_are_never_asked_for():
    class Asked(list):
        def __getitem__(self, index):
            assert index in (0, 2)
            return super().__getitem__(index)

    tree = Proposal([0, 1, 2], [-1, -1, 0])
    typical.verify(tree, Asked([distribution(0.0, 1.0, 0.0)] * 4), KeyedRandomSource(0), 3)


def test_it_is_lossy_above_temperature_0_and_exact_at_0():
    def tree(rule):
        return Scripted(top_tree(TARGET, [2, 1]))

    assert not typical.LOSSLESS
    assert distance(TARGET, 3, tree, typical, gamma=4, count=2, spare=2) > 0.1
    one = session(count=20, gamma=4, params=GREEDY)
    assert list(decode(TARGET, 3, tree(typical), typical, one)) == plain(
        TARGET, KeyedRandomSource(0), GREEDY, (0, 1), 20
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_draft_is_the_drafts_most_probable_token(seed):
    assert typical.draw(distribution(0.2, 0.5, 0.3), KeyedRandomSource(seed), 4, 0, 0) == 1
    assert (
        typical.draw(
            Distribution(scores=np.array([0.0, -math.inf], dtype=np.float32), ids=np.array([3, 8])),
            KeyedRandomSource(seed),
            4,
            0,
            0,
        )
        == 3
    )
