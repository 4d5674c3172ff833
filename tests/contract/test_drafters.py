"""One battery for every module of drafters/."""

import dataclasses

import pytest
from tests.helpers.toys import MATCH, RATIO, SAMPLED, commit_until, finish, plain, remembered, session

from outpace import drafters
from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import ParameterError
from outpace.core.protocols import Parts, Rule
from outpace.core.types import Forward, Proposal, SamplingParams, Verdict
from outpace.engine.loop import Loop
from outpace.sampling.coins import KeyedCoins

V = 6
TARGET = remembered(hashed_logits(V, 41, order=2))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 42, order=2), 0.7))
every = pytest.mark.parametrize("name", drafters.names())


def build(name: str, rule: Rule = MATCH):
    module = drafters.module(name)
    parts = Parts(rule, V, ToyRuntime(DRAFT, V) if module.NEEDS_DRAFT else None)
    return module.create(module.Config(), parts), parts


def held(drafter, parts: Parts) -> int:
    """Sessions that the drafter still knows, in any container of its own."""
    own = [value for value in getattr(drafter, "__dict__", {}).values() if isinstance(value, (dict, set, list))]
    slots = [value.slots for value in getattr(drafter, "__dict__", {}).values() if hasattr(value, "slots")]
    return sum(map(len, own)) + sum(slots)


def test_there_are_some_and_unknown_ones_are_refused():
    assert {"none", "draft_model", "lookup"} <= set(drafters.names())
    with pytest.raises(ParameterError, match="lookup"):
        drafters.module("no_such_drafter")


@every
def test_config_is_a_frozen_dataclass_with_a_gamma(name):
    kind = drafters.module(name).Config
    assert dataclasses.is_dataclass(kind)
    config = kind()
    assert isinstance(config.gamma, int) and config.gamma >= 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 1
    assert kind(gamma=2).gamma == 2
    assert isinstance(drafters.module(name).NEEDS_DRAFT, bool)
    assert drafters.module(name).__doc__


@every
@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
def test_proposals_are_well_formed_and_within_budget(name, rule):
    drafter, _ = build(name, rule)
    batch = [
        session(i, count=30, gamma=9, params=SAMPLED, coins=KeyedCoins(i), prompt=[0, 1, 2] * (2 + i)) for i in range(4)
    ]
    for one in batch:
        drafter.begin(one)
    for budgets in ([9, 0, 1, 4], [0, 0, 0, 0], [1, 2, 3, 4]):
        proposals = drafter.propose(batch, budgets)
        assert len(proposals) == len(batch)
        for proposal, budget in zip(proposals, budgets, strict=True):
            assert isinstance(proposal, Proposal)
            proposal.check(V, budget)
            if budget == 0:
                assert len(proposal) == 0
        for one in batch:
            one.tokens.append(one.id)
        drafter.observe(batch, [Verdict([], one.id, "correction") for one in batch], [Forward([])] * 4)
    assert drafter.propose([], []) == []


@every
def test_proposing_twice_gives_the_same(name):
    """Between rounds a drafter has no coins of its own."""
    answers = []
    for _ in range(2):
        drafter, _ = build(name)
        one = session(count=30, gamma=4, params=SAMPLED, prompt=[0, 1, 2, 0, 1, 2])
        drafter.begin(one)
        answers.append(list(drafter.propose([one], [4])[0].tokens))
    assert answers[0] == answers[1]


@every
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_output_under_match_is_plain_and_nothing_is_left(name, params):
    """Sessions of different length and gamma join, leave and are cancelled in the middle of a batch."""
    drafter, parts = build(name)
    empty = held(drafter, parts)
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    first = [
        session(
            i, count=10 + 5 * i, gamma=[4, 0, 7][i], params=params, coins=KeyedCoins(i), prompt=[0, 1] * (1 + 2 * i)
        )
        for i in range(3)
    ]
    gone = session(9, count=50, gamma=5, params=params)
    loop.admit([gone, *first])
    loop.round([gone, *first])
    loop.release(gone)
    late = session(10, count=15, gamma=3, params=params, coins=KeyedCoins(10))
    loop.admit([late])
    everyone = [*first, late]
    finish(loop, everyone)
    for one in everyone:
        prompt = one.tokens[: one.prompt_length]
        assert one.generated == plain(TARGET, KeyedCoins(one.coins.seed), params, prompt, one.limit - len(prompt))
        assert not one.report.warnings
    assert held(drafter, parts) == empty
    assert loop.cache.slots == 0


@every
def test_end_without_begin_and_twice_is_harmless(name):
    drafter, parts = build(name)
    one = session(count=5, gamma=2)
    drafter.end(one)
    drafter.begin(one)
    drafter.end(one)
    drafter.end(one)
    assert held(drafter, parts) == 0
