"""Philox against its published answers, and what the keys promise."""

import math

import numpy as np
import pytest

from outpace.core.types import USES, Distribution, Key
from outpace.sampling.random_source import KeyedRandomSource, gumbel_noise, philox, quantile

ONES = 0xFFFFFFFF
KNOWN = [  # counter, key (low word first), answer: the vectors published with Random123
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_known_answers(counter, key, answer):
    words = philox(tuple(np.array([word], dtype=np.uint64) for word in counter), key[1] << 32 | key[0])
    assert tuple(int(word[0]) for word in words) == answer


def uniforms(use, seeds=range(4), bases=range(2, 500)):
    return np.array([KeyedRandomSource(seed).uniform(Key(base, 1, use)) for seed in seeds for base in bases])


@pytest.mark.parametrize("use", USES)
def test_uniform(use):
    sample = np.sort(uniforms(use))
    assert sample[0] >= 0 and sample[-1] < 1
    gap = np.abs(sample - (np.arange(sample.size) + 0.5) / sample.size).max()  # Kolmogorov and Smirnov
    assert gap * math.sqrt(sample.size) < 1.95  # its 0.999 quantile


def test_uses_nodes_rounds_samples_and_seeds_are_independent():
    """B32 among others: the draft's random draw says nothing about the acceptance's."""
    columns = [uniforms(use) for use in USES]
    columns.append(
        np.array([KeyedRandomSource(s).uniform(Key(b, 2, "accept")) for s in range(4) for b in range(2, 500)])
    )
    columns.append(
        np.array([KeyedRandomSource(s).uniform(Key(b + 1, 1, "accept")) for s in range(4) for b in range(2, 500)])
    )
    columns.append(
        np.array([KeyedRandomSource(s, 1).uniform(Key(b, 1, "accept")) for s in range(4) for b in range(2, 500)])
    )
    columns.append(uniforms("accept", seeds=range(2**40, 2**40 + 4)))
    related = np.corrcoef(np.stack(columns)) - np.eye(len(columns))
    assert np.abs(related).max() < 4 / math.sqrt(columns[0].size)


def test_root_and_high_seeds_have_rng_of_their_own():
    keys = [Key(3, node, use) for node in (-1, 0, 1) for use in USES]
    seen = {
        KeyedRandomSource(seed, sample).uniform(key)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for sample in (0, 1)
        for key in keys
    }
    assert len(seen) == 4 * 2 * len(keys)


def test_asking_again_gives_the_same_answer():
    key = Key(9, 2, "draft")
    assert KeyedRandomSource(5).uniform(key) == KeyedRandomSource(5).uniform(key)


def test_noise_of_a_token_does_not_depend_on_which_others_are_asked():
    everyone = gumbel_noise(3, 0, 17, np.arange(1000))
    some = np.array([0, 3, 4, 5, 511, 999])
    assert (gumbel_noise(3, 0, 17, some) == everyone[some]).all()
    assert (gumbel_noise(3, 0, 17, some[::-1].copy()) == everyone[some[::-1]]).all()
    assert gumbel_noise(3, 0, 17, np.array([7]))[0] == everyone[7]


def test_noise_is_standard_gumbel_and_changes_with_every_key():
    noise = gumbel_noise(3, 0, 17, np.arange(20_000))
    assert np.isfinite(noise).all()
    spread = np.sort(np.exp(-np.exp(-noise)))  # uniform when the noise is Gumbel's
    assert np.abs(spread - (np.arange(20_000) + 0.5) / 20_000).max() * math.sqrt(20_000) < 1.95
    for other in ((4, 0, 17), (3, 1, 17), (3, 0, 18)):
        assert abs(np.corrcoef(noise, gumbel_noise(*other, np.arange(20_000)))[0, 1]) < 0.03


def test_noise_and_round_rng_share_no_words():
    """The tag of the noise is none of the uses of round random draws."""
    words = gumbel_noise(3, 0, 5, np.arange(4, 8))
    uniform = np.exp(-np.exp(-words))
    for use in USES:
        assert np.abs(uniform - KeyedRandomSource(3).uniform(Key(5, 1, use))).min() > 1e-6


def test_gumbel_argmax_on_a_subset_is_the_argmax_over_the_same_noise():
    rng, ids = KeyedRandomSource(8), np.array([1, 5, 6])
    probs = np.array([0.2, 0.3, 0.5], dtype=np.float32)
    dense = np.zeros(9, dtype=np.float32)
    dense[ids] = probs
    for position in range(200):
        assert rng.gumbel_argmax(position, Distribution(probs, ids)) == rng.gumbel_argmax(position, Distribution(dense))


def test_quantile_never_gives_an_impossible_token():
    distribution = Distribution(np.array([0.0, 0.5, 0.0, 0.5, 0.0], dtype=np.float32))
    assert [quantile(distribution, u) for u in (0.0, 0.4999, 0.5, 1 - 2**-53)] == [1, 1, 3, 3]


def test_bernoulli_is_certain_at_the_ends():
    for base in range(2, 200):
        assert not KeyedRandomSource(1).bernoulli(Key(base, 0, "accept"), 0.0)
        assert KeyedRandomSource(1).bernoulli(Key(base, 0, "accept"), 1.0)
