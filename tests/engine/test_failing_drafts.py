"""A draft that fails, depending on what it drew: everything drawn before is submitted, and nobody else notices."""

import numpy as np
import pytest
from tests.helpers.toys import (
    BLOCK,
    MATCH,
    RATIO,
    SAMPLED,
    Scripted,
    admit,
    commit_until,
    decode,
    distance,
    finish,
    plain,
    remembered,
    sampled_tree,
    session,
)

from outpace.audit.toy import ToyRuntime, failing_logits, hashed_logits, mixed_logits
from outpace.core.types import Proposal
from outpace.drafters.draft_model import DraftModel
from outpace.engine.loop import Loop
from outpace.sampling.random_source import KeyedRandomSource

V = 3
TARGET = remembered(hashed_logits(V, 21, sharpness=1.0))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 22), 0.5))
rules = pytest.mark.parametrize("rule", [RATIO, BLOCK], ids=["ratio", "block"])


@rules
@pytest.mark.parametrize("error", [None, RuntimeError, MemoryError], ids=["nan", "raises", "memory"])
def test_the_first_token_is_the_targets_whatever_the_draft_draws_before_it_fails(rule, error):
    """Target and draft are 0.5 / 0.5, and the draft fails behind its own token 0: it came 0.26 of the time once."""
    even = lambda prefix: np.zeros(2)  # noqa: E731
    zeros = 0
    for seed in range(1500):
        one = session(count=4, gamma=2, params=SAMPLED, rng=KeyedRandomSource(seed), prompt=[1])
        zeros += decode(even, 2, DraftModel(ToyRuntime(failing_logits(even, error), 2)), rule, one)[0] == 0
    assert abs(zeros / 1500 - 0.5) < 0.05  # four standard deviations


def after(one, budget, *, fault):
    """A chain of drawn tokens, one of which is followed by a fault: whether, depends on the draw."""
    node, drawn = -1, []
    while len(drawn) < budget:
        distribution = one.pipeline.distribution(np.asarray(DRAFT((*one.tokens, *drawn))), [*one.tokens, *drawn])
        node = one.draw(distribution, node)
        drawn.append(one.record.tokens[node])
        if drawn[-1] == 0:
            return fault(one)
    return one.record.proposal()


def refuse(one):
    raise RuntimeError("on purpose")


FAULTS = {
    "raises": refuse,
    "gives nothing": lambda one: Proposal(),
    "forgets the last": lambda one: Proposal.chain(one.record.tokens[:-1], one.record.distributions[:-1]),
    "is no proposal": lambda one: None,
    "names a token that is none": lambda one: Proposal.chain([V + 3]),
    "draws from another distribution": lambda one: Proposal.chain(
        one.record.tokens, [type(distribution)(np.full((V,), 1 / V)) for distribution in one.record.distributions]
    ),
    "adds a sibling beyond the budget": lambda one: Proposal(
        [*one.record.tokens, 1], [*one.record.parents, -1], [*one.record.distributions, None]
    ),
}


@rules
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_drafter_hands_in_the_distribution_is_the_targets(rule, fault):
    drafter = lambda rule: Scripted(lambda one, budget: after(one, budget, fault=FAULTS[fault]))  # noqa: E731
    found = distance(TARGET, V, drafter, rule, gamma=3, count=2, spare=1, failing=True)
    assert found < 1e-9


@rules
def test_a_drafter_that_draws_past_the_record_drafts_nothing_and_is_told_so(rule):
    """Whoever calls the rule itself could lose what was drawn: under a rule that needs the draws, none counts."""

    def careless(one, budget):
        distribution = one.pipeline.distribution(np.asarray(DRAFT(tuple(one.tokens))), one.tokens)
        token = one.rule.draw(distribution, one.rng, len(one.tokens), 0, 0)
        if token == 0:
            raise RuntimeError("on purpose")
        return Proposal.chain([token], [distribution])

    assert distance(TARGET, V, lambda rule: Scripted(careless), rule, gamma=1, count=3, failing=True) < 1e-9
    one = session(count=9, gamma=1, params=SAMPLED, rng=KeyedRandomSource(1))
    decode(TARGET, V, Scripted(careless), rule, one)
    assert one.report.drafted == 0 and one.report.warnings


def test_the_record_is_what_is_submitted():
    one = session(count=9, gamma=3, params=SAMPLED, rng=KeyedRandomSource(5))
    loop = Loop(ToyRuntime(TARGET, V), Scripted(lambda one, budget: after(one, budget, fault=refuse)), RATIO,
                commit_until())  # fmt: skip
    admit(loop, [one])
    [proposal] = loop._propose([one])
    assert (
        list(proposal.tokens) == one.record.tokens
        and proposal.tokens
        and len(proposal.draft_distributions) == len(proposal)
    )
    assert one.report.warnings == ["drafting failed: RuntimeError: on purpose"] or len(proposal) == 3
    loop.release(one)


@pytest.mark.parametrize("rule", [MATCH, RATIO, BLOCK], ids=["match", "ratio", "block"])
def test_one_of_a_batch_fails_and_the_others_draft_as_if_alone(rule):
    draft = failing_logits(DRAFT, None)

    def run(numbers):
        sessions = [
            session(i, count=12, gamma=3, params=SAMPLED, rng=KeyedRandomSource(i), prompt=[1 + i % 2, 2])
            for i in numbers
        ]
        loop = Loop(ToyRuntime(TARGET, V), DraftModel(ToyRuntime(draft, V)), rule, commit_until())
        admit(loop, sessions)
        finish(loop, sessions)
        return {one.id: (one.generated, one.report.drafted, one.report.accepted) for one in sessions}

    alone = {}
    for i in range(6):
        alone |= run([i])
    assert run(range(6)) == alone
    assert any(drafted for _, drafted, _ in alone.values())
    if rule is MATCH:
        for i, (tokens, *_) in alone.items():
            assert tokens == plain(TARGET, KeyedRandomSource(i), SAMPLED, [1 + i % 2, 2], 12)


@pytest.mark.parametrize("error", [None, RuntimeError, MemoryError], ids=["nan", "raises", "memory"])
def test_under_match_failures_leave_plain_decodings_tokens(error):
    for seed in range(20):
        draft = failing_logits(DRAFT, error)
        tree = Scripted(sampled_tree(draft, [2, 1, 1], replacement=False))
        for drafter in (DraftModel(ToyRuntime(draft, V)), tree):
            one = session(count=15, gamma=5, params=SAMPLED, rng=KeyedRandomSource(seed))
            assert list(decode(TARGET, V, drafter, MATCH, one)) == plain(
                TARGET, KeyedRandomSource(seed), SAMPLED, [0, 1], 15
            )
