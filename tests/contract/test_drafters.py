"""One battery for every module of drafters/."""

import dataclasses
import string
from types import SimpleNamespace

import numpy as np
import pytest
from tests.helpers.heads import toy_folder
from tests.helpers.toys import (
    MATCH,
    PROMPT,
    RATIO,
    SAMPLED,
    admit,
    commit_until,
    decode,
    distance,
    finish,
    plain,
    remembered,
    session,
)
from tests.helpers.vocabularies import letters

from outpace import drafters
from outpace.audit.exact import enumerate_distribution, plain_distribution, total_variation
from outpace.audit.toy import LogitsOf, ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import ParameterError
from outpace.core.protocols import Parts, Requirements, forecast_of
from outpace.core.types import Forward, Proposal, SamplingParams, Verdict
from outpace.drafters.common.own_cache import OwnCacheDraft
from outpace.engine.loop import Loop
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource

V = 6
TARGET = remembered(hashed_logits(V, 41, order=2))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 42, order=2), 0.7))
CHOOSE = {"lookup", "medusa", "none", "recycle", "reencode"}  # these never draw
every = pytest.mark.parametrize("name", drafters.names())


def build(name: str, vocab_size: int = V, draft: LogitsOf = DRAFT):
    """The drafter as it is by default, over toys."""
    module, needs = drafters.module(name), drafters.requirements(drafters.configure([name], {}))[name]
    if name in ("layer_skip", "low_bit"):  # made of a target's own layers, which toys do not have: what both are
        return OwnCacheDraft(ToyRuntime(draft, vocab_size))
    tokenizer = SimpleNamespace(tokenizer=letters(*string.ascii_lowercase[:vocab_size]))
    parts = Parts(
        vocab_size,
        draft=ToyRuntime(draft, vocab_size) if needs.draft_model else None,
        target_model=None if needs.same_vocabulary else tokenizer,
        draft_model=None if needs.same_vocabulary else tokenizer,
    )
    heads = toy_folder(name, vocab_size)
    return module.create(module.Config(heads=str(heads)) if heads else module.Config(), parts)


def held(value) -> int:
    """Sessions and slots that a drafter still knows, in containers of its own or of its members."""
    if hasattr(value, "propose"):
        return sum(map(held, vars(value).values()))
    if isinstance(value, tuple):
        return sum(map(held, value))
    return len(value) if isinstance(value, (dict, set, list)) else getattr(value, "slots", 0)


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
    assert isinstance(drafters.module(name).requires(config), Requirements)
    assert drafters.module(name).__doc__


@every
@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
def test_proposals_are_well_formed_and_within_budget(name, rule):
    drafter = build(name)
    batch = [
        session(i, count=30, gamma=9, params=SAMPLED, rng=KeyedRandomSource(i), prompt=[0, 1, 2] * (2 + i), rule=rule)
        for i in range(4)
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
        seen = Forward([], {name: [np.zeros((10, V), dtype=np.float32)] for name in drafter.needs})
        drafter.observe(batch, [Verdict([], one.id, "correction") for one in batch], [seen] * 4)
    assert drafter.propose([], []) == []


@every
def test_proposing_twice_gives_the_same(name):
    """Between rounds a drafter has no random draws of its own."""
    answers = []
    for _ in range(2):
        drafter = build(name)
        one = session(count=30, gamma=4, params=SAMPLED, prompt=[0, 1, 2, 0, 1, 2], rule=MATCH)
        drafter.begin(one)
        answers.append(list(drafter.propose([one], [4])[0].tokens))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", [n for n in drafters.names() if forecast_of(build(n))])
def test_a_forecast_is_of_what_would_be_proposed(name):
    drafter = build(name)
    one = session(count=30, gamma=9, prompt=[0, 1, 2, 3, 4] * 3 + [5, 3], rule=MATCH)
    drafter.begin(one)
    drafted = 0
    for token in [4, 0, 1, 2, 3, 4, 5]:
        for most in (1, 4, 9):
            chances = drafter.forecast(one, most)
            [proposal] = drafter.propose([one], [most])
            assert len(proposal) == len(chances) <= most
            assert all(0 < chance < 1 for chance in chances) and chances == sorted(chances, reverse=True)
            drafted += len(proposal)
        one.tokens.append(token)
    assert drafted > 0


@every
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_output_under_match_is_plain_and_nothing_is_left(name, params):
    """Sessions of different length and gamma join, leave and are cancelled in the middle of a batch."""
    drafter = build(name)
    empty = held(drafter)
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    first = [
        session(
            i,
            count=10 + 5 * i,
            gamma=[4, 0, 7][i],
            params=params,
            rng=KeyedRandomSource(i),
            prompt=[0, 1] * (1 + 2 * i),
        )
        for i in range(3)
    ]
    gone = session(9, count=50, gamma=5, params=params)
    admit(loop, [gone, *first])
    loop.round([gone, *first])
    loop.release(gone)
    late = session(10, count=15, gamma=3, params=params, rng=KeyedRandomSource(10))
    admit(loop, [late])
    everyone = [*first, late]
    finish(loop, everyone)
    for one in everyone:
        prompt = one.tokens[: one.request.prompt_length]
        assert one.generated == plain(
            TARGET, KeyedRandomSource(one.rng.seed), params, prompt, one.request.limit - len(prompt)
        )
        assert not one.report.warnings
    assert held(drafter) == empty
    assert loop.cache.slots == 0


@every
def test_end_without_begin_and_twice_is_harmless(name):
    drafter = build(name)
    empty = held(drafter)
    one = session(count=5, gamma=2)
    drafter.end(one)
    drafter.begin(one)
    drafter.end(one)
    drafter.end(one)
    assert held(drafter) == empty


@every
@pytest.mark.parametrize("gamma", [1, 3])
def test_the_distribution_under_ratio_is_the_targets(name, gamma):
    """Every outcome of the random draws, by whatever chain or tree the drafter makes of them."""
    target = remembered(hashed_logits(3, 43, sharpness=1.0, order=2))
    draft = remembered(mixed_logits(target, hashed_logits(3, 44, order=2), 0.5))
    found = distance(target, 3, lambda rule: build(name, 3, draft), RATIO, gamma=gamma, count=2, spare=2)
    assert found < 1e-9


@every
def test_a_session_may_end_and_begin_again_in_the_middle_of_its_answer(name):
    """As it does where memory runs out: the drafter drafts again, and nothing is left of the first time."""
    drafter = build(name)
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    one = session(1, count=24, gamma=3, params=SAMPLED)
    admit(loop, [one])
    for _ in range(3):
        loop.round([one])
    loop.release(one)
    assert held(drafter) == 0 and one.finish is None
    drafted = one.report.drafted
    admit(loop, [one])
    finish(loop, [one])
    assert one.generated == plain(TARGET, one.rng, one.request.params, one.tokens[: one.request.prompt_length], 24)
    assert not one.report.warnings and (one.report.drafted > drafted or name in ("none", "lookup", "suffix"))
    assert held(drafter) == loop.cache.slots == 0


class FailsBehindZero:
    """``ratio``, but drawing fails behind a drawn token 0 of the same round: depending on the draw, at any depth."""

    LOSSLESS, TREES, NEEDS_DISTRIBUTIONS, SHARED_NOISE = True, True, True, False
    verify = staticmethod(RATIO.verify)

    def __init__(self):
        self.last, self.failed = None, 0

    def draw(self, distribution, rng, base, node, depth):
        if self.last is not None and self.last[0] is rng and self.last[1:] == (base, 0) and node:
            self.failed += 1
            raise RuntimeError("on purpose")
        token = RATIO.draw(distribution, rng, base, node, depth)
        self.last = rng, base, token
        return token


@every
def test_a_draw_that_fails_leaves_the_distribution(name):
    """Whatever the drafter makes of a failing draw: what it drew before is submitted."""
    target = remembered(hashed_logits(3, 43, sharpness=1.0, order=2))
    draft = remembered(mixed_logits(target, hashed_logits(3, 44, order=2), 0.5))
    rule = FailsBehindZero()

    def run(rng):
        one = session(count=2, gamma=3, rng=rng, params=SAMPLED, spare=2)
        return decode(target, 3, build(name, 3, draft), rule, one, commit_until(count=2))

    found = total_variation(
        enumerate_distribution(run), plain_distribution(target, Pipeline(SAMPLED, len(PROMPT)), PROMPT, 2)
    )
    assert found < 1e-9
    assert (rule.failed > 0) == (name not in CHOOSE)
