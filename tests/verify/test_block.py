"""Block verification: its distribution over several rounds, and that it never accepts less than ``ratio``."""

import itertools

import numpy as np
import pytest
from tests.helpers.toys import (
    BLOCK,
    RATIO,
    SAMPLED,
    commit_until,
    decode,
    distance,
    remembered,
    session,
)

from outpace.audit import broken
from outpace.audit.exact import enumerate_distribution
from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.types import Distribution, Key, Proposal, SamplingParams, softmax
from outpace.drafters.draft_model import DraftModel
from outpace.sampling.random_source import KeyedRandomSource
from outpace.verify import block

SAME, BENT = 1e-9, 1e-3
PAIRS = {
    "near": (remembered(hashed_logits(3, 1)), 0.7),
    "far": (remembered(hashed_logits(3, 4)), 0.2),
    "unrelated": (remembered(hashed_logits(3, 8)), 0.0),
}


def pair(name, vocab_size=3):
    target, share = PAIRS[name]
    return target, remembered(mixed_logits(target, hashed_logits(vocab_size, 2), share))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_distribution_over_several_rounds(name, gamma):
    target, draft = pair(name)
    make = lambda rule: DraftModel(ToyRuntime(draft, 3))  # noqa: E731
    assert distance(target, 3, make, BLOCK, gamma=gamma, count=3) < SAME


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=1.3, top_p=0.8), SamplingParams(temperature=0.5)], ids=str
)
def test_distribution_through_the_pipeline_under_chains_of_three(params):
    target, draft = remembered(hashed_logits(2, 5)), remembered(hashed_logits(2, 6))
    make = lambda rule: DraftModel(ToyRuntime(draft, 2))  # noqa: E731
    assert distance(target, 2, make, BLOCK, gamma=3, count=4, params=params) < SAME


def expected_accepted(rule, distributions, drafts):
    """Exact mean length of the accepted stretch of one round of a drawn chain. ``distributions[prefix]``,
    ``drafts[prefix]``."""
    gamma = max(map(len, drafts)) + 1

    def run(rng):
        tokens = []
        for depth in range(gamma):
            tokens.append(rule.draw(drafts[tuple(tokens)], rng, 5, depth, depth))
        stated = [drafts[tuple(tokens[:i])] for i in range(gamma)]
        rows = [distributions[tuple(tokens[:i])] for i in range(gamma + 1)]
        return len(rule.verify(Proposal.chain(tokens, stated), rows, rng, 5).path)

    return sum(length * weight for length, weight in enumerate_distribution(run).items())


def random_distributions(generator, depth, vocab_size, sharpness):
    prefixes = [p for length in range(depth + 1) for p in itertools.product(range(vocab_size), repeat=length)]
    return {p: Distribution(softmax(sharpness * generator.standard_normal(vocab_size))) for p in prefixes}


def test_never_accepts_less_than_ratio_and_mostly_more():
    generator = np.random.default_rng(3)
    gains = []
    for number in range(24):
        gamma, sharpness = 2 + number % 2, (0.5, 1.0, 2.0, 4.0)[number % 4]
        distributions = random_distributions(generator, gamma, 2, sharpness)
        drafts = random_distributions(generator, gamma - 1, 2, sharpness)
        ratio, joint = (expected_accepted(rule, distributions, drafts) for rule in (RATIO, BLOCK))
        assert joint >= ratio - 1e-12
        gains.append(joint - ratio)
    assert sum(gain > 1e-3 for gain in gains) > 12


def test_the_papers_example():
    """Section 2 of the paper: p(A) = 1/3, q(A) = 2/3, gamma 2: ratio accepts 10/9 tokens, block 11/9."""
    p, q = (
        Distribution(np.array([1 / 3, 2 / 3])),
        Distribution(np.array([2 / 3, 1 / 3])),
    )
    prefixes = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    distributions, drafts = dict.fromkeys(prefixes, p), dict.fromkeys(prefixes[:3], q)
    assert expected_accepted(RATIO, distributions, drafts) == pytest.approx(10 / 9)
    assert expected_accepted(BLOCK, distributions, drafts) == pytest.approx(11 / 9)


def test_one_draft_is_judged_as_ratio_judges_it():
    generator = np.random.default_rng(5)
    for seed in range(40):
        p, q, bonus = (Distribution(softmax(generator.standard_normal(4).astype(np.float32))) for _ in range(3))
        proposal = Proposal.chain([RATIO.draw(q, KeyedRandomSource(seed), 3, 0, 0)], [q])
        verdicts = [rule.verify(proposal, [p, bonus], KeyedRandomSource(seed), 3) for rule in (RATIO, BLOCK)]
        assert verdicts[0] == verdicts[1]


def test_a_later_draft_saves_an_earlier_one():
    """Refused at its own place, a token stands when the next one's random draw says so."""
    p, q = Distribution(np.array([1 / 3, 2 / 3])), Distribution(np.array([2 / 3, 1 / 3]))
    proposal = Proposal.chain([0, 1], [q, q])

    class RandomSource(KeyedRandomSource):
        def bernoulli(self, key: Key, prob: float) -> bool:
            return key.node == 1 and prob > 0

    assert BLOCK.verify(proposal, [p, p, p], RandomSource(0), 2).path == [0, 1]


def test_rows_behind_an_impossible_draft_are_not_asked_for():
    class Distributions(list):
        def __getitem__(self, index):
            assert index == 0, "a distribution that decides nothing was worked out"
            return super().__getitem__(index)

    verdict = BLOCK.verify(
        Proposal.chain([1, 0, 0]), Distributions([Distribution.point(2)] * 4), KeyedRandomSource(1), 4
    )
    assert (verdict.path, verdict.token, verdict.kind) == ([], 2, "correction")


def test_forgetting_the_weight_is_caught():
    target, draft = pair("near")
    make = lambda rule: DraftModel(ToyRuntime(draft, 3))  # noqa: E731
    wrong = broken.altered(block, residual=lambda target, draft, weight: block.residual(target, draft, 1.0))
    assert distance(target, 3, make, wrong, gamma=2, count=2, spare=1) > BENT
    assert distance(target, 3, make, broken.altered(block), gamma=2, count=2, spare=1) < SAME


def test_random_source_of_a_round_are_not_asked_twice():
    keys: list[Key] = []

    class Noting(KeyedRandomSource):
        def uniform(self, key: Key) -> float:
            keys.append(key)
            return super().uniform(key)

    target, draft = pair("far")
    one = session(count=30, gamma=3, rng=Noting(3), params=SAMPLED)
    decode(target, 3, DraftModel(ToyRuntime(draft, 3)), BLOCK, one, commit_until())
    assert len(keys) == len(set(keys)) > 60
