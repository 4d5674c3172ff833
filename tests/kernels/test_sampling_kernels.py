"""Sampling kernels against their numpy twins and the package's own random draws."""

from __future__ import annotations

import numpy as np
import pytest

from outpace.core.errors import NumericsError
from outpace.core.types import Distribution, SamplingParams, log_total, softmax
from outpace.kernels.native import available, open_library
from outpace.kernels.sampling import NoiseKey, Sampler
from outpace.sampling.pipeline import Pipeline, _top_k, _top_p
from outpace.sampling.random_source import gumbel_noise, quantile

pytestmark = pytest.mark.skipif(not available(), reason="the C kernels are not built")
SIZES = [1, 5, 15, 16, 17, 1000, 40_003]
TAG = 3


def perturbed_argmax_twin(logits: np.ndarray, temperature: float, noise: np.ndarray) -> int:
    """The twin of :meth:`Sampler.perturbed_argmax`, from the noise of all tokens (float64 [vocab])."""
    return int(np.argmax(logits.astype(np.float64) / temperature + noise))


def softmax_twin(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """The twin of :meth:`Sampler.softmax`, in float64."""
    scores = (logits.astype(np.float64) - logits.max()) / temperature
    probs = np.exp(scores)
    return probs / probs.sum()


@pytest.fixture(params=available())
def sampler(request):
    return Sampler(open_library(request.param))


def random_logits(size, seed, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_argmax_takes_the_lowest_of_the_greatest(sampler, size):
    logits = random_logits(size, 1)
    assert sampler.argmax(logits) == int(logits.argmax())
    first, last = size // 3, size - 1
    logits[first] = logits[last] = 50.0
    assert sampler.argmax(logits) == first
    logits[:] = -np.inf
    logits[last] = -1e30
    assert sampler.argmax(logits) == last


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wrong", [np.nan, float("inf")])
def test_no_token_from_broken_logits(sampler, size, wrong):
    for at in {0, size // 2, size - 1}:
        logits = random_logits(size, 2)
        logits[at] = wrong
        for call in (
            sampler.argmax,
            sampler.softmax,
            lambda x: sampler.perturbed_argmax(x, 1.0, NoiseKey(1, 2, 0, TAG)),
        ):
            with pytest.raises(NumericsError):
                call(logits)
    with pytest.raises(NumericsError):
        sampler.perturbed_argmax(np.full(size, -np.inf, dtype=np.float32), 1.0, NoiseKey(1, 2, 0, TAG))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_softmax(sampler, size, temperature):
    logits = random_logits(size, 3)
    logits[size // 2] = -np.inf if size > 1 else 0.0
    np.testing.assert_allclose(
        sampler.softmax(logits, temperature), softmax_twin(logits, temperature), rtol=2e-5, atol=1e-37
    )


def test_noise_is_that_of_the_rng(sampler):
    for seed, sample, position in [(0, 0, 0), (2**64 - 1, 7, 123_456), (0x0123456789ABCDEF, 2, 2**32 - 1)]:
        key = NoiseKey(seed, position, sample, TAG)
        ids = np.arange(20_001)
        expected = gumbel_noise(seed, sample, position, ids)
        # The generator is the same, bit for bit; libm's and numpy's logarithms may differ in the last place.
        np.testing.assert_allclose(sampler.gumbel(key, len(ids)), expected, rtol=1e-13, atol=1e-15)
        some = np.array([19_999, 3, 4, 8_000, 3])
        assert np.array_equal(sampler.gumbel(key, some), sampler.gumbel(key, len(ids))[some])


@pytest.mark.parametrize("size", SIZES)
def test_lazy_argmax_equals_the_whole_computation(sampler, size):
    generator = np.random.default_rng(size)
    for trial in range(40 if size > 10_000 else 200):
        logits = random_logits(size, trial, float(generator.choice([0.0, 0.01, 1.0, 8.0])))
        if size > 4 and trial % 3 == 0:
            logits[np.random.default_rng(trial).random(size) < 0.7] = -np.inf
            logits[size // 2] = 0.0
        temperature = float(generator.choice([0.05, 0.7, 1.0, 5.0]))
        seed, position, sample = (
            int(generator.integers(2**63)),
            int(generator.integers(10**6)),
            int(generator.integers(9)),
        )
        key = NoiseKey(seed, position, sample, TAG)
        noise = gumbel_noise(seed, sample, position, np.arange(size))
        expected = perturbed_argmax_twin(logits, temperature, noise)
        assert sampler.perturbed_argmax(logits, temperature, key) == expected


def test_draws_follow_the_softmax(sampler):
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5], dtype=np.float32)
    draws = 20_000
    keys = [NoiseKey(11, position, 0, TAG) for position in range(draws)]
    tokens = [sampler.perturbed_argmax(logits, 0.8, key) for key in keys]
    expected = softmax_twin(logits, 0.8) * draws
    counts = np.bincount(tokens, minlength=5)
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5  # chi-square, 4 degrees of freedom: p = 0.001


def tied_logits(size, seed):
    """Rows of all sharpnesses, with many ties, zeros of both signs and impossible tokens."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(size) * [0.1, 2.0, 6.0][seed % 3]).astype(np.float32)
    if seed % 2:
        logits = np.rint(logits * 4) / 4
    if seed % 5 == 0:
        logits[rng.random(size) < 0.6] = -np.inf
        logits[size // 2] = 0.0
    logits[size // 3] = -0.0
    return logits


@pytest.mark.parametrize("size", [*SIZES, 5003])
def test_selection_keeps_what_numpy_keeps(sampler, size):
    for seed in range(4 if size > 10_000 else 12):
        logits = tied_logits(size, seed)
        probs = softmax(logits)
        for k in {1, min(size, 40), max(1, size // 2), size}:
            assert np.array_equal(sampler.top_k(logits, k), _top_k(logits, k))
        for top_p in (0.05, 0.5, 0.95, 0.999999, 0.99999999):
            assert np.array_equal(sampler.top_p(probs, top_p), _top_p(probs, top_p))
        floor = float(logits.max()) - 1
        assert np.array_equal(sampler.at_least(logits, floor), np.flatnonzero(logits >= floor))


def test_the_greatest_come_last(sampler):
    """Every token enters the heap."""
    logits = np.arange(3000, dtype=np.float32)
    assert sampler.top_k(logits, 40).tolist() == list(range(2960, 3000))


@pytest.mark.parametrize("size", [*SIZES, 5003])
def test_quantile_finds_the_token_whose_stretch_it_is(sampler, size):
    for seed in range(6):
        logits = tied_logits(size, seed)
        probs = softmax(logits)
        mass = np.cumsum(probs, dtype=np.float64) / probs.sum(dtype=np.float64)
        for uniform in (0.0, 0.3, 0.77, 1 - 2**-53):
            expected = quantile(Distribution(probs), uniform)
            for found in (sampler.quantile(probs, uniform), sampler.quantile_of_scores(logits, uniform)):
                assert probs[found] > 0
                # Another one only where the boundary between the two is the uniform to rounding.
                assert found == expected or abs(float(mass[min(found, expected)]) - uniform) < 1e-6


@pytest.mark.parametrize("size", SIZES)
def test_total(sampler, size):
    logits = tied_logits(size, 7)
    expected = log_total(logits.astype(np.float64))
    assert sampler.log_total(logits, float(logits.max())) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_k=40),
        SamplingParams(temperature=0.6, top_p=0.95),
        SamplingParams(temperature=1.0, top_k=40, top_p=0.95),
        SamplingParams(temperature=1.3, min_p=0.05),
        SamplingParams(temperature=1.0, top_k=300, top_p=0.9, min_p=0.02),
    ],
    ids=str,
)
def test_the_pipeline_keeps_the_same_tokens_with_and_without_kernels(sampler, params):
    fast, slow = Pipeline(params, sampler=sampler), Pipeline(params)
    kept = []
    for seed in range(12):
        logits = tied_logits(4003, seed)
        one, other = fast.distribution(logits, []), slow.distribution(logits, [])
        assert np.array_equal(one.scores, other.scores)
        assert (one.ids is None) if other.ids is None else np.array_equal(one.ids, other.ids)
        for token in (one.token(0), one.token(one.size - 1)):
            assert one.prob(token) == pytest.approx(other.prob(token), rel=1e-5)
        kept.append((one, one.scores.copy()))
    # What was given out stays as it was: later rows use no memory of earlier distributions.
    assert all(np.array_equal(distribution.scores, scores) for distribution, scores in kept)
