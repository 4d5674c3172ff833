"""The target's own weights at 4 bits draft for it."""

from __future__ import annotations

import pytest
from tests.helpers.shipped import needs_torch

from outpace import SamplingParams, load
from outpace.catalogue import resolve
from outpace.core.errors import DrafterError
from outpace.core.protocols import Parts
from outpace.drafters.low_bit import Config, bits_of, create
from outpace.runtimes.loading import LoadedModel, load_model

PROMPTS = ["def read(path):\n    with open(path) as f:\n        return", "The river rose for nine days, and", "class"]


def tiny(weights: str, backend: str = "native") -> LoadedModel:
    return load_model(resolve("tiny"), weights=weights, backend=backend, threads=1)


@pytest.mark.parametrize("weights", ["f32", "bf16", "q8"])
def test_answers_are_plain_decodings(weights):
    engine = load(tiny(weights), drafter="low_bit", controller="fixed")
    params = [SamplingParams(temperature=t, seed=i, max_tokens=24, ignore_eos=True) for i, t in enumerate((0, 0, 1))]
    drafted = engine.generate(PROMPTS, params)
    alone = [engine.generate(prompt, p, gamma=0) for prompt, p in zip(PROMPTS, params, strict=True)]
    assert [result.token_ids for result in drafted] == [result.token_ids for result in alone]
    assert not any(result.report.warnings for result in drafted)
    accepted, tested = (sum(getattr(r.report, name) for r in drafted) for name in ("accepted", "tested"))
    assert 0.7 < accepted / tested < 1  # close to the target, and not the target
    assert all(result.report.seconds_draft_prefill == 0 for result in drafted)


@pytest.mark.parametrize("accept", ["ratio", "block"])
def test_greedy_answers_are_the_same_under_every_rule(accept):
    engine = load(tiny("f32"), drafter="low_bit", controller="fixed", accept=accept)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    assert engine.generate(PROMPTS[0], params).token_ids == engine.generate(PROMPTS[0], params, gamma=0).token_ids


@needs_torch
def test_a_torch_target_may_have_it_too():
    engine = load(tiny("f32", "torch"), drafter="low_bit", controller="fixed")
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    result = engine.generate(PROMPTS[0], params)
    assert result.report.accepted > 0 and not result.report.warnings


def test_bits_of_a_weight_scales_included():
    assert bits_of(tiny("f32")) == pytest.approx(32, rel=0.01)
    assert bits_of(tiny("bf16")) == pytest.approx(16, rel=0.01)
    assert bits_of(tiny("q8")) == pytest.approx(8.5, rel=0.03)
    assert bits_of(tiny("q4")) == pytest.approx(5, rel=0.05)


def test_a_target_of_few_bits_is_refused():
    with pytest.raises(DrafterError, match=r"5\.\d bits a weight already.*bf16 or q8"):
        load(tiny("q4"), drafter="low_bit", controller="fixed")


def test_without_a_file_there_is_nothing_to_round():
    with pytest.raises(DrafterError, match="loaded from a file"):
        create(Config(), Parts(3))


def test_the_copy_is_rounded_and_its_head_pruned():
    target = tiny("f32")
    drafter = create(Config(head=100), Parts(target.runtime.vocab_size, target=target.runtime, target_model=target))
    kept = set(drafter._runtime._weights.head_ids.tolist())
    assert kept == {*range(100), *target.tokenizer.special_ids, *target.end_tokens}
    kinds = {matrix.kind for layer in drafter._runtime._weights.layers for matrix in layer.matrices.values()}
    assert kinds == {"Q4_1"}
    assert drafter._runtime.new_cache().dtype == target.runtime.new_cache().dtype == "float32"
