"""The distribution of the output is the target's: every outcome of the random draws, through the production loop."""

import contextlib

import pytest
from tests.helpers.toys import (
    BLOCK,
    GREEDY,
    RATIO,
    SAMPLED,
    Scripted,
    admit,
    commit_until,
    distance,
    finish,
    mixture,
    remembered,
    sampled_tree,
    session,
    top_tree,
)

from outpace.audit import broken
from outpace.audit.exact import enumerate_distribution, total_variation
from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import NumericsError
from outpace.core.types import SamplingParams
from outpace.drafters.draft_model import DraftModel
from outpace.engine.loop import Loop
from outpace.sampling.pipeline import Pipeline

SAME = 1e-9  # total variation that rounding may leave
BENT = 1e-3  # total variation that a wrong rule must show

TARGET = remembered(hashed_logits(3, 1))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(3, 2), 0.3))
OTHER = remembered(hashed_logits(3, 7))
TARGET4 = remembered(hashed_logits(4, 3))
DRAFT4 = remembered(mixed_logits(TARGET4, hashed_logits(4, 4), 0.3))
PIPELINES = {
    "greedy": GREEDY,
    "cold": SamplingParams(temperature=0.5),
    "hot": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(temperature=1.0, top_k=2),
    "top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "min-p": SamplingParams(temperature=1.0, min_p=0.2),
    "all": SamplingParams(temperature=1.7, top_k=3, top_p=0.9, min_p=0.1),
}
DRAFTERS = {
    "drawn with replacement": lambda rule: Scripted(sampled_tree(DRAFT, [2, 1], replacement=True)),
    "drawn without replacement": lambda rule: Scripted(sampled_tree(DRAFT, [2, 1], replacement=False)),
    "chosen": lambda rule: Scripted(top_tree(DRAFT, [2, 2])),
    "chosen, then drawn from the rest": lambda rule: Scripted(mixture(OTHER, DRAFT, 2, keep_duplicates=False)),
    "chosen, then drawn, repeats kept": lambda rule: Scripted(mixture(OTHER, DRAFT, 2, keep_duplicates=True)),
}


def chain(rule):
    return DraftModel(ToyRuntime(DRAFT, 3))


@pytest.mark.parametrize("gamma", [1, 2])
def test_chain(gamma):
    assert distance(TARGET, 3, chain, RATIO, gamma=gamma, count=3) < SAME


@pytest.mark.parametrize("params", PIPELINES.values(), ids=PIPELINES)
def test_chain_through_the_pipeline(params):
    assert distance(TARGET, 3, chain, RATIO, gamma=2, count=3, params=params) < SAME


def test_chain_of_three_over_several_rounds():
    target = remembered(hashed_logits(2, 5, sharpness=1.0))
    draft = remembered(hashed_logits(2, 6, sharpness=1.0))
    make = lambda rule: DraftModel(ToyRuntime(draft, 2))  # noqa: E731
    assert distance(target, 2, make, RATIO, gamma=3, count=4) < SAME


def test_larger_vocabulary():
    make = lambda rule: DraftModel(ToyRuntime(DRAFT4, 4))  # noqa: E731
    assert distance(TARGET4, 4, make, RATIO, gamma=2, count=2, spare=1) < SAME


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("params", [SAMPLED, PIPELINES["top-p"]], ids=["plain", "top-p"])
def test_tree(make, params):
    assert distance(TARGET, 3, make, RATIO, gamma=6, count=2, spare=2, params=params) < SAME


@pytest.mark.parametrize("name", ["chosen", "chosen, then drawn from the rest"])
def test_tree_over_three_tokens(name):
    assert distance(TARGET, 3, DRAFTERS[name], RATIO, gamma=4, count=3, spare=1) < SAME


def test_draft_may_be_warped_in_its_own_way():
    """B08: the draft is truncated, the target is not; what counts is the distribution that the token was drawn from."""
    own = Pipeline(SamplingParams(temperature=0.7, top_k=2, top_p=0.5))
    make = lambda rule: Scripted(sampled_tree(DRAFT, [1, 1], replacement=True, pipeline=own))  # noqa: E731
    assert distance(TARGET, 3, make, RATIO, gamma=2, count=3) < SAME


@pytest.mark.parametrize("rule", broken.RULES.values(), ids=broken.RULES)
def test_wrong_rules_are_caught(rule):
    assert distance(TARGET, 3, chain, rule, gamma=2, count=2, spare=1) > BENT


def test_right_twin_of_the_wrong_rules_passes():
    assert distance(TARGET, 3, chain, broken.RIGHT, gamma=2, count=2, spare=1) < SAME


def test_dropping_a_drawn_token_is_caught():
    assert (
        distance(TARGET, 3, lambda rule: broken.Edited(chain(rule), broken.cut_at_odd), RATIO, gamma=2, count=3) > BENT
    )


class FailsBehindZero:
    """The target's numbers fail behind token 0 at a place; its drafts' do not."""

    def __init__(self, length):
        self.pipeline, self.length = Pipeline(SAMPLED), length

    def distribution(self, logits, prefix):
        if len(prefix) == self.length and prefix[-1] == 0:
            raise NumericsError("no numbers")
        return self.pipeline.distribution(logits, prefix)


@pytest.mark.parametrize("make", ["chain", "tree"])
@pytest.mark.parametrize("rule", [RATIO, BLOCK], ids=["ratio", "block"])
def test_the_targets_own_error_comes_as_often_and_as_late_as_without_drafts(rule, make):
    """Also where the rule looks at rows that it then refuses: an error there is none of the request's."""
    if make == "tree" and not rule.TREES:
        pytest.skip("chains only")
    target, draft = (remembered(hashed_logits(2, seed, sharpness=1.0)) for seed in (5, 6))

    def outcomes(gamma):
        def run(rng):
            drafter = DraftModel(ToyRuntime(draft, 2))
            if make == "tree":
                drafter = Scripted(sampled_tree(draft, [2, 1], replacement=True))
            one = session(count=3, gamma=gamma, rng=rng, params=SAMPLED, spare=2)
            one.target_pipeline = FailsBehindZero(4)
            loop = Loop(ToyRuntime(target, 2), drafter, rule, commit_until(count=3))
            admit(loop, [one])
            with contextlib.suppress(NumericsError):
                finish(loop, [one])
            return tuple(one.generated), one.finish

        return enumerate_distribution(run)

    plainly = outcomes(0)
    assert {finish for _, finish in plainly} == {"error", "length"}
    assert total_variation(outcomes(3), plainly) < SAME


def test_position_keys_under_a_rule_that_looks_ahead_are_caught():
    assert distance(TARGET, 3, chain, BLOCK, gamma=2, count=3, wrap=broken.by_position) > BENT
    assert distance(TARGET, 3, chain, BLOCK, gamma=2, count=3) < SAME
