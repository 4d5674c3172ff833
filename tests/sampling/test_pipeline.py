"""The logits pipeline against a slow twin that says each control in one line."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.core.errors import NumericsError, ParameterError
from outpace.core.types import SamplingParams
from outpace.sampling.pipeline import Pipeline


def distribution(logits, **params):
    return Pipeline(SamplingParams(**params)).distribution(
        np.asarray(logits, dtype=getattr(logits, "dtype", np.float32)), []
    )


def slow(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    top = max(logits)
    weights = {i: math.exp((x - top) / temperature) for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    kept = ranked[:top_k] if top_k else ranked
    total, mass, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        nucleus.append(i)
        mass += weights[i] / total
        if mass >= top_p:
            break
    kept = [i for i in nucleus if weights[i] >= min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}


@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=12),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.integers(0, 13),
    st.sampled_from([0.101, 0.55, 0.93, 1.0]),
    st.sampled_from([0.0, 0.037, 0.37]),
)
def test_agrees_with_the_slow_twin(tenths, temperature, top_k, top_p, min_p):
    logits = [x / 10 for x in tenths]  # ties are frequent
    fast = distribution(np.array(logits), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = slow(logits, temperature, top_k, top_p, min_p)
    assert [fast.token(i) for i in range(fast.probs.size)] == sorted(expected)
    assert fast.probs.tolist() == pytest.approx([expected[i] for i in sorted(expected)])


def test_temperature_zero_is_the_lowest_of_the_best():
    """B05: an exact tie goes to the lower id."""
    greedy = distribution([0.0, 2.0, 2.0, 1.0])
    assert greedy.probs.tolist() == [1.0]
    assert greedy.token(0) == 1
    assert distribution([0.0, 2.0, 2.0 + 1e-6]).token(0) == 2


def test_top_k_one_is_greedy():
    rng = np.random.default_rng(0)
    for _ in range(50):
        row = rng.standard_normal(30, dtype=np.float32)
        assert distribution(row, temperature=1.0, top_k=1).token(0) == distribution(row).token(0)


@pytest.mark.parametrize("temperature", [1e-9, 1e-45, 1e-300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiny_temperatures_are_greedy_not_nan(temperature, dtype):
    assert distribution(np.array([1.0, 3.0, 2.0], dtype=dtype), temperature=temperature).probs.tolist() == [0, 1, 0]


def test_ties_at_the_edge_go_to_the_lower_ids():
    assert distribution([1.0, 0.0, 1.0, 1.0], temperature=1.0, top_k=2).ids.tolist() == [0, 2]
    assert distribution([1.0, 1.0, 1.0, 1.0], temperature=1.0, top_p=0.5).ids.tolist() == [0, 1]


def test_top_p_over_a_large_flat_vocabulary():
    """More tokens in the nucleus than are sorted at first; all equally probable."""
    flat = distribution(np.zeros(4096, dtype=np.float32), temperature=1.0, top_p=0.5)
    assert flat.ids.tolist() == list(range(2048))
    row = np.random.default_rng(0).standard_normal(6000)
    wide = distribution(row, temperature=2.0, top_p=0.9)
    assert wide.ids.tolist() == sorted(slow(row.tolist(), 2.0, 0, 0.9, 0.0))


def test_minus_infinity_is_impossible():
    row = [0.0, -math.inf, 1.0]
    assert distribution(row, temperature=1.0).probs[1] == 0
    assert distribution(row, temperature=1.0, top_p=0.999999).ids.tolist() == [0, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_none_are_refused(bad, temperature):
    with pytest.raises(NumericsError):
        distribution([0.0, bad, 1.0], temperature=temperature)
    with pytest.raises(NumericsError):
        distribution([-math.inf, -math.inf], temperature=temperature)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"seed": -1},
        {"seed": 2**64},
        {"max_tokens": -1},
        {"stop": [""]},
        {"stop_token_ids": [-1]},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 5e-324},
        {"repetition_penalty": math.nan},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"7": 1.0}},
        {"logit_bias": {1.5: 1.0}},
        {"logit_bias": {7: 1000}},
        {"logit_bias": {7: "much"}},
        {"logit_bias": [7]},
        {"logprobs": -1},
        {"constraint": "json"},
    ],
    ids=str,
)
def test_impossible_parameters_are_named(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        SamplingParams(**bad)
