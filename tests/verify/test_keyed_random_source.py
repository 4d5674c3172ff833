"""The random draws that are really used: the distribution of `ratio` over several rounds, and the tokens of `match`."""

import math
from collections import Counter

import numpy as np
import pytest
from tests.helpers.toys import (
    GREEDY,
    MATCH,
    PROMPT,
    RATIO,
    SAMPLED,
    Scripted,
    commit_until,
    decode,
    plain,
    remembered,
    right_first,
    sampled_tree,
    session,
    top_tree,
)

from outpace.audit.exact import plain_distribution
from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.types import Distribution, Key, Proposal, SamplingParams
from outpace.drafters.draft_model import DraftModel
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource

TARGET = remembered(hashed_logits(3, 1))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(3, 2), 0.3))


def assert_fits(counts: Counter, distribution: dict) -> None:
    """Pearson's chi-square stays below its 0.999 quantile (Wilson and Hilferty's approximation)."""
    total = sum(counts.values())
    assert set(counts) <= set(distribution)
    statistic = sum((counts[key] - total * prob) ** 2 / (total * prob) for key, prob in distribution.items())
    df = len(distribution) - 1
    assert statistic < df * (1 - 2 / (9 * df) + 3.09 * math.sqrt(2 / (9 * df))) ** 3


@pytest.mark.parametrize(
    ("count", "seeds"), [(2, 500), pytest.param(3, 5000, marks=pytest.mark.audit)], ids=["short", "long"]
)
@pytest.mark.parametrize("rule", [RATIO, MATCH], ids=["ratio", "match"])
def test_distribution_over_several_rounds(rule, count, seeds):
    """Drafts look beyond the tokens that are counted, and after a refusal the next round drafts again."""
    drafter = DraftModel(ToyRuntime(DRAFT, 3))
    counts = Counter(
        decode(
            TARGET,
            3,
            drafter,
            rule,
            session(count=count, gamma=2, rng=KeyedRandomSource(seed), params=SAMPLED, spare=2),
            commit_until(count=count),
        )
        for seed in range(seeds)
    )
    assert_fits(counts, plain_distribution(TARGET, Pipeline(SAMPLED), PROMPT, count))


def first_tokens(target: Distribution, proposal_of, seeds: int) -> Counter:
    """First tokens of rounds that verify one drafted token, and the random draws as the loop would key them."""
    counts: Counter = Counter()
    for seed in range(seeds):
        rng = KeyedRandomSource(seed)
        proposal = proposal_of(rng)
        verdict = RATIO.verify(proposal, [target, target], rng, 2)
        counts[proposal.tokens[verdict.path[0]] if verdict.path else verdict.token] += 1
    return counts


P = Distribution(np.array([0.05, 0.5, 0.2, 0.2, 0.05], dtype=np.float32))
Q = Distribution(np.array([0.5, 0.1, 0.1, 0.1, 0.2], dtype=np.float32))


def test_drawn_draft_far_from_the_target():
    """B07, and B32: the draft's random draw and the acceptance's are independent."""
    drawn = lambda rng: Proposal.chain([RATIO.draw(Q, rng, 2, 0, 0)], [Q])  # noqa: E731
    assert_fits(first_tokens(P, drawn, 2500), dict(enumerate(P.probs.tolist())))


def test_chosen_draft_is_accepted_with_the_targets_probability():
    """B07, the other case: no draft distribution."""
    assert_fits(first_tokens(P, lambda rng: Proposal.chain([3]), 2500), dict(enumerate(P.probs.tolist())))


def test_greedy_accepts_exactly_the_argmax():
    """B10: at temperature 0 a token that the target does not say is refused, whatever the draft's soft distribution."""
    distribution = Pipeline(GREEDY).distribution(np.log(np.array([0.3, 0.5, 0.2], dtype=np.float32)), [])
    for rule in (RATIO, MATCH):
        for token in range(3):
            for q in (None, Distribution(np.array([0.2, 0.2, 0.6], dtype=np.float32))):
                verdict = rule.verify(
                    Proposal.chain([token], [q]), [distribution, distribution], KeyedRandomSource(1), 5
                )
                assert (verdict.path, verdict.token) == (([0], 1) if token == 1 else ([], 1))


def test_gumbel_argmax_follows_the_distribution():
    distribution = Distribution(np.array([0.1, 0.6, 0.25, 0.05], dtype=np.float32), np.array([2, 3, 9, 11]))
    counts = Counter(KeyedRandomSource(7).gumbel_argmax(position, distribution) for position in range(3000))
    assert_fits(counts, dict(zip([2, 3, 9, 11], distribution.probs.tolist(), strict=True)))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SamplingParams(temperature=1.5, top_p=0.8)], ids=str)
def test_match_says_what_plain_decoding_says(params):
    target = remembered(hashed_logits(6, 11))
    draft = remembered(mixed_logits(target, hashed_logits(6, 12), 0.6))
    drafters = {
        "model": DraftModel(ToyRuntime(draft, 6)),
        "tree": Scripted(sampled_tree(draft, [2, 1, 1], replacement=False)),
        "top": Scripted(top_tree(draft, [3, 2])),
        "half right": Scripted(right_first(target, 6, 2)),
    }
    for seed in range(3):
        expected = tuple(plain(target, KeyedRandomSource(seed), params, PROMPT, 12))
        for name, drafter in drafters.items():
            for gamma in (0, 1, 2, 3, 5, 8):
                one = session(count=12, gamma=gamma, rng=KeyedRandomSource(seed), params=params)
                assert decode(target, 6, drafter, MATCH, one) == expected, (name, gamma, seed)


def test_same_seed_same_tokens_and_another_seed_others():
    """B31."""
    target = remembered(hashed_logits(20, 5, sharpness=0.5))
    drafter = DraftModel(ToyRuntime(target, 20))
    texts = [
        decode(target, 20, drafter, RATIO, session(count=12, gamma=3, rng=KeyedRandomSource(seed), params=SAMPLED))
        for seed in (42, 42, 42, 43)
    ]
    assert texts[0] == texts[1] == texts[2] != texts[3]


@pytest.mark.parametrize("rule", [RATIO, MATCH], ids=["ratio", "match"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.01),
        SamplingParams(temperature=1.0, top_p=0.3),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, min_p=0.7),
        SamplingParams(temperature=0.8, top_k=3, top_p=0.9, min_p=0.2),
        SamplingParams(temperature=1.0, top_k=1),
    ],
    ids=str,
)
def test_every_place_of_a_run_obeys_the_sampling_controls(rule, params):
    """B09: on a nearly flat model the support at each offset is plain's."""
    flat = np.linspace(1.0, 0.0, 8, dtype=np.float64)
    distribution = Pipeline(params).distribution(flat, [])
    support = {distribution.token(i) for i in range(distribution.probs.size) if distribution.probs[i] > 1e-4}
    seen: list[set[int]] = [set() for _ in range(6)]
    drafter = DraftModel(ToyRuntime(lambda prefix: flat, 8))
    for seed in range(60):
        one = session(count=6, gamma=5, rng=KeyedRandomSource(seed), params=params)
        tokens = decode(lambda prefix: flat, 8, drafter, rule, one)
        assert one.report.target_passes == 1  # draft == target: all six in one run
        for place, token in enumerate(tokens):
            seen[place].add(token)
    assert seen == [support] * 6


def test_random_source_of_a_round_are_not_asked_twice():
    """No random draw of `ratio` serves two questions, also over several rounds."""

    keys: list[Key] = []

    class Noting(KeyedRandomSource):
        def uniform(self, key: Key) -> float:
            keys.append(key)
            return super().uniform(key)

    one = session(count=30, gamma=3, rng=Noting(3), params=SAMPLED)
    decode(TARGET, 3, DraftModel(ToyRuntime(DRAFT, 3)), RATIO, one)
    assert len(keys) == len(set(keys)) > 60
