"""Bias and penalties against a twin that counts from scratch, wherever the prefix goes."""

import random
from collections import Counter

import numpy as np
import pytest

from outpace.audit.drive import PROMPT, decode, plain, remembered, session
from outpace.audit.shapes import Scripted, right_first, sampled_tree
from outpace.audit.toy import hashed_logits
from outpace.core.errors import ParameterError
from outpace.core.types import SamplingParams, softmax
from outpace.kernels.native import available, open_library
from outpace.kernels.sampling import Sampler
from outpace.sampling.penalties import shared_length
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource
from outpace.verify import match, ratio

ALL = SamplingParams(
    temperature=0.9,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    repetition_penalty=1.3,
    logit_bias={2: 1.5, 0: -3.0},
)


def slow(logits: list[float], prefix: list[int], prompt_length: int, params: SamplingParams) -> list[float]:
    seen, said = Counter(prefix), Counter(prefix[prompt_length:])
    out = []
    for token, x in enumerate(logits):
        x += params.logit_bias.get(token, 0.0)
        if seen[token]:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        x -= params.frequency_penalty * said[token] + params.presence_penalty * (said[token] > 0)
        out.append(x / params.temperature)
    return out


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_counts_follow_the_prefix_wherever_it_goes(dtype):
    """B22, B23: growing, rolled back, on another branch, shorter than the prompt, another prompt altogether."""
    rng, pipeline, prompt_length = random.Random(4), Pipeline(ALL, 3), 3
    prefix = [rng.randrange(9) for _ in range(3)]
    for step in range(400):
        if step % 3:
            prefix = prefix + [rng.randrange(9) for _ in range(rng.randrange(4))]
        else:
            prefix = [*prefix[: rng.randrange(max(1, len(prefix) - 4), len(prefix) + 1)], rng.randrange(9)]
        if step % 50 == 49:
            prefix = [rng.randrange(9) for _ in range(rng.randrange(1, 6))]
        logits = np.array([rng.uniform(-4, 4) for _ in range(9)], dtype=dtype)
        expected = softmax(np.array(slow(logits.tolist(), prefix, prompt_length, ALL)))
        rtol = 1e-7 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(pipeline.distribution(logits, prefix).dense(9), expected, rtol=rtol, atol=1e-7)
        # Not one bit depends on what was asked before.
        assert np.array_equal(
            pipeline.distribution(logits, prefix).scores, Pipeline(ALL, 3).distribution(logits, prefix).scores
        )


def test_the_prompt_counts_for_repetition_alone():
    logits, prompt = np.array([1.0, 1.0, -1.0], dtype=np.float32), [0, 2]
    openai = SamplingParams(temperature=1.0, presence_penalty=2.0, frequency_penalty=2.0)
    assert Pipeline(openai, 2).distribution(logits, prompt).scores.tolist() == logits.tolist()
    repeats = SamplingParams(temperature=1.0, repetition_penalty=2.0)
    assert Pipeline(repeats, 2).distribution(logits, prompt).scores.tolist() == [
        0.5,
        1.0,
        -2.0,
    ]
    assert Pipeline(openai, 2).distribution(logits, [*prompt, 0, 0]).scores.tolist() == [
        -5.0,
        1.0,
        -1.0,
    ]


def test_the_models_own_row_is_left_alone():
    logits = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    Pipeline(ALL).distribution(logits, [0, 1])
    assert logits.tolist() == [1.0, 2.0, 3.0]


def test_greedy_obeys_too():
    logits = np.array([0.0, 3.0, 2.0], dtype=np.float32)
    assert Pipeline(SamplingParams(logit_bias={1: -100})).distribution(logits, []).token(0) == 2
    assert Pipeline(SamplingParams(logit_bias={0: 100})).distribution(logits, []).token(0) == 0
    penalised = Pipeline(SamplingParams(frequency_penalty=0.6))
    assert [penalised.distribution(logits, [1] * times).token(0) for times in range(3)] == [1, 1, 2]


def test_a_draft_with_fewer_tokens_is_adjusted_as_far_as_it_goes():
    distribution = Pipeline(ALL).distribution(np.zeros(2, dtype=np.float32), [0, 1, 4])
    assert distribution.size == 2
    wide = Pipeline(ALL).distribution(np.zeros(5, dtype=np.float32), [0, 1, 4])
    np.testing.assert_allclose(np.diff(distribution.scores), np.diff(wide.scores[:2]), rtol=1e-5)


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_kernels_and_numpy_adjust_alike():
    rng = np.random.default_rng(0)
    fast = Sampler(open_library()) if available() else None
    for top_k, top_p in [(0, 1.0), (5, 1.0), (0, 0.8)]:
        params = SamplingParams(temperature=0.8, top_k=top_k, top_p=top_p, presence_penalty=1.0, repetition_penalty=1.2)
        for _ in range(20):
            logits = 3 * rng.standard_normal(500, dtype=np.float32)
            prefix = rng.integers(500, size=60).tolist()
            one, other = (Pipeline(params, 5, sampler=s).distribution(logits, prefix) for s in (fast, None))
            assert np.array_equal(one.scores, other.scores)
            assert (one.ids is None) if other.ids is None else np.array_equal(one.ids, other.ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("right", range(6))
def test_drafting_leaves_the_penalties_as_strong(temperature, right):
    """B22: runs of five accepted tokens, each of which counts at once."""
    target = remembered(hashed_logits(5, 3, sharpness=0.4))
    params = SamplingParams(temperature=temperature, frequency_penalty=1.0, presence_penalty=0.3)
    expected = tuple(plain(target, KeyedRandomSource(7), params, PROMPT, 40))
    assert expected != tuple(plain(target, KeyedRandomSource(7), SamplingParams(temperature=temperature), PROMPT, 40))
    one = session(count=40, gamma=5, rng=KeyedRandomSource(7), params=params)
    assert decode(target, 5, Scripted(right_first(target, 5, right)), match, one) == expected
    assert one.report.accepted > 0 or right == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(presence_penalty=1.0),
        SamplingParams(frequency_penalty=1.0),
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(logit_bias={1: -100}),
        SamplingParams(logit_bias={3: 100}),
    ],
    ids=str,
)
def test_every_field_has_its_effect_while_drafting(params):
    """B23, B46: the same tokens as without drafting; a banned token never comes, a forced one always does."""
    target = remembered(hashed_logits(5, 3, sharpness=0.4))
    expected = tuple(plain(target, KeyedRandomSource(7), params, PROMPT, 30))
    assert expected != tuple(plain(target, KeyedRandomSource(7), SamplingParams(), PROMPT, 30))
    for rule in (match, ratio):
        drafter = Scripted(sampled_tree(target, [2, 1, 1], replacement=False))
        one = session(count=30, gamma=6, rng=KeyedRandomSource(7), params=params)
        assert decode(target, 5, drafter, rule, one) == expected
        assert not one.report.warnings
    for token, bias in params.logit_bias.items():
        assert (token in expected) == (bias > 0)


def test_bias_beyond_the_vocabulary_is_refused():
    """B46."""
    with pytest.raises(ParameterError, match="logit_bias names token 7"):
        Pipeline(SamplingParams(logit_bias={2: 1.0, 7: 1.0}), vocab_size=7)
    assert Pipeline(SamplingParams(logit_bias={6: 1.0}), vocab_size=7)


def test_shared_length():
    assert shared_length([], [1]) == 0
    assert shared_length([1, 2, 3], [1, 2]) == 2
    assert shared_length([1, 2, 3], [1, 4, 3]) == 1
    assert shared_length([5], [1]) == 0
    assert shared_length([1, 2, 3], (1, 2)) == 2
