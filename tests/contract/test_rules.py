"""One battery for every module of verify/."""

import numpy as np
import pytest
from tests.helpers.toys import (
    GREEDY,
    Scripted,
    commit_until,
    decode,
    plain,
    remembered,
    sampled_tree,
    session,
    top_tree,
)

from outpace import verify
from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import ParameterError
from outpace.core.types import Distribution, Proposal, SamplingParams
from outpace.drafters.draft_model import DraftModel
from outpace.sampling.random_source import KeyedRandomSource

V = 5
TARGET = remembered(hashed_logits(V, 51))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 52), 0.6))
every = pytest.mark.parametrize("name", verify.names())
lossless = pytest.mark.parametrize("name", [name for name in verify.names() if verify.rule(name).LOSSLESS])


def test_there_are_some_and_unknown_ones_are_refused():
    assert {"match", "ratio"} <= set(verify.names())
    with pytest.raises(ParameterError, match="ratio"):
        verify.rule("no_such_rule")


@every
def test_says_what_it_is(name):
    rule = verify.rule(name)
    for flag in (rule.LOSSLESS, rule.TREES, rule.NEEDS_DISTRIBUTIONS, rule.SHARED_NOISE):
        assert isinstance(flag, bool)
    assert "arXiv" in verify.module(name).__doc__


def distribution(*probs: float) -> Distribution:
    return Distribution(np.array(probs, dtype=np.float64))


@every
def test_nothing_proposed_is_one_token_of_the_targets(name):
    verdict = verify.rule(name).verify(Proposal(), [distribution(0, 0, 1)], KeyedRandomSource(1), 3)
    assert (verdict.path, verdict.token, verdict.kind, verdict.tested) == ([], 2, "bonus", 0)


@every
def test_certain_tokens_are_accepted_and_impossible_ones_refused(name):
    """At temperature 0 nothing is left to chance: distributions of one token each, on a wider support too."""
    rule = verify.rule(name)
    for one, two in ((Distribution.point(1), Distribution.point(2)), (distribution(0, 1, 0), distribution(0, 0, 1))):
        distributions = [one, two, one]
        verdict = rule.verify(Proposal.chain([1, 2]), distributions, KeyedRandomSource(5), 4)
        assert (verdict.path, verdict.token, verdict.kind, verdict.tested) == ([0, 1], 1, "bonus", 2)
        verdict = rule.verify(Proposal.chain([1, 0]), distributions, KeyedRandomSource(5), 4)
        assert (verdict.path, verdict.token, verdict.kind, verdict.tested) == ([0], 2, "correction", 2)
        verdict = rule.verify(Proposal.chain([0, 2]), distributions, KeyedRandomSource(5), 4)
        assert (verdict.path, verdict.token, verdict.kind, verdict.tested) == ([], 1, "correction", 1)


@every
def test_finds_the_right_branch_of_a_tree(name):
    rule = verify.rule(name)
    if not rule.TREES:
        pytest.skip("chains only")
    tree = Proposal([0, 1, 3, 2, 4], [-1, -1, 0, 1, 3])
    distributions = [
        Distribution.point(1),
        Distribution.point(3),
        Distribution.point(2),
        Distribution.point(0),
        Distribution.point(4),
        Distribution.point(3),
    ]
    verdict = rule.verify(tree, distributions, KeyedRandomSource(0), 2)
    assert (verdict.path, verdict.token, verdict.kind) == ([1, 3, 4], 3, "bonus")


@lossless
def test_the_draft_is_drawn_from_its_distribution(name):
    rule = verify.rule(name)
    half = Distribution(np.array([0.25, 0.75], dtype=np.float32), np.array([2, 4]))
    drawn = [rule.draw(half, KeyedRandomSource(seed), 7, 1, 1) for seed in range(1000)]
    assert set(drawn) == {2, 4}
    assert abs(drawn.count(4) / 1000 - 0.75) < 0.05


@lossless
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.2, top_p=0.9)], ids=["greedy", "sampled"])
def test_draft_equal_to_the_target_is_accepted_whole(name, params):
    rule = verify.rule(name)
    one = session(count=30, gamma=4, params=params)
    decode(TARGET, V, DraftModel(ToyRuntime(TARGET, V)), rule, one)
    assert one.report.alpha == 1.0
    assert one.report.target_passes == 6


@lossless
def test_greedy_output_is_plain_whatever_is_drafted(name):
    rule = verify.rule(name)
    expected = plain(TARGET, KeyedRandomSource(0), GREEDY, (0, 1), 30)
    widths = [2, 2] if rule.TREES else [1, 1, 1]
    drafters = [
        DraftModel(ToyRuntime(DRAFT, V)),
        Scripted(top_tree(DRAFT, widths)),
        Scripted(sampled_tree(DRAFT, widths, replacement=True)),
    ]
    for drafter in drafters:
        one = session(count=30, gamma=6)
        assert list(decode(TARGET, V, drafter, rule, one, commit_until())) == expected
        assert not one.report.warnings


@every
def test_same_question_same_verdict(name):
    rule = verify.rule(name)
    distributions, draft = [distribution(0.3, 0.7), distribution(0.5, 0.5)], distribution(0.8, 0.2)
    verdicts = {
        str(rule.verify(Proposal.chain([0], [draft]), distributions, KeyedRandomSource(3), 9)) for _ in range(3)
    }
    assert len(verdicts) == 1
