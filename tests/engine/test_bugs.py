"""Kinds of failure seen elsewhere that no other test of ours meets: docs/why/bugs-covered.md lists them all."""

import dataclasses

import pytest
from tests.helpers import tiny_models
from tests.helpers.shipped import model, shared_engine

from outpace import SamplingParams
from outpace.catalogue import resolve
from outpace.engine.build import load
from outpace.runtimes.loading import load_model

CODE = "def read(path):\n    with open(path) as f:\n        return"
DRAFTERS = ["draft_model", "lookup"]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_long_answers_at_any_depth(drafter):
    """B01, B04, B59: 150 tokens, greedy and sampled, and gamma is a matter of speed alone."""
    prompts = [CODE, "<<function=f>(<<function=g>((", "x x x x x x x x"]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=150, ignore_eos=True) for t in (0, 1, 0)]
    expected = [one.token_ids for one in shared_engine("none").generate(prompts, params)]
    for gamma in (2, 7, 32):
        found = shared_engine(drafter).generate(prompts, params, gamma=gamma)
        assert [one.token_ids for one in found] == expected, gamma
        assert sum(one.report.accepted for one in found) > 50


def test_reduced_precision_is_the_same_everywhere_where_rows_keep_their_bits():
    """B04, B05: what is promised for bfloat16 depends on the runtime (docs/why/exactness.md)."""
    target = load_model(resolve("tiny"), weights="bf16", threads=1)
    if not target.runtime.capabilities().row_invariant:
        pytest.skip("the kernels are not built, and torch's passes of one and of several rows round differently")
    engine = load(target, model("tiny-draft"), controller="fixed")
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    expected = engine.generate(CODE, params, gamma=0).token_ids
    assert [engine.generate(CODE, params, gamma=gamma).token_ids for gamma in (1, 2, 3, 5, 8, 16)] == [expected] * 6
    assert [one.token_ids for one in engine.generate([CODE] * 5, params, gamma=5)] == [expected] * 5


def made(path, seed, pad, change=lambda weights, size: None):
    """A random model whose output matrix has ``pad`` rows beyond its tokenizer."""
    tokenizer = tiny_models.byte_level_tokenizer()
    size = tokenizer.get_vocab_size()
    config = tiny_models.tiny_config("llama", tokenizer, vocab_size=size + pad)
    weights = tiny_models.tiny_weights(config, seed)
    change(weights, size)
    return load_model(tiny_models.write_directory(path, config, weights, tokenizer), weights="f32", threads=1)


@pytest.mark.parametrize(("ours", "theirs"), [(24, 8), (8, 24)])
@pytest.mark.parametrize("accept", ["match", "ratio"])
def test_vocabularies_padded_to_other_sizes(tmp_path, ours, theirs, accept):
    """B24: they pair, and padding is never said although its logits would be the largest."""

    def shout(weights, size):
        head = weights["lm_head.weight"]
        head[size:] = 50 * head[: head.shape[0] - size]

    target, draft = made(tmp_path / "target", 1, ours, shout), made(tmp_path / "draft", 2, theirs, shout)
    engine, own = (load(target, one, accept=accept, controller="fixed") for one in (draft, target))
    size = target.tokenizer.size
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=40, ignore_eos=True)
        plain = engine.generate(CODE, params, gamma=0)
        for one in (engine.generate(CODE, params), own.generate(CODE, params)):
            assert len(one.token_ids) == 40 and max(one.token_ids) < size and not one.report.warnings
            if accept == "match" or temperature == 0:
                assert one.token_ids == plain.token_ids


def test_exact_ties_go_to_the_lower_id_in_passes_of_any_size(tmp_path):
    """B05: every odd token has the logits of the even one below it, so no greedy answer has an odd one."""

    def twins(weights, size):
        weights["lm_head.weight"][1:size:2] = weights["lm_head.weight"][0 : size - 1 : 2]

    engine = load(*[made(tmp_path / "target", 1, 0, twins)] * 2, controller="fixed")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = engine.generate(CODE, params, gamma=0).token_ids
    assert all(token % 2 == 0 for token in plain) and len(set(plain)) > 2
    for gamma in (1, 4, 16):
        assert engine.generate(CODE, params, gamma=gamma).token_ids == plain


def test_lookups_longer_than_the_room_left():
    """B30: 256 looked-up tokens at a time, eight repetitive requests at once, up to the limit."""
    engine = load(model("tiny", 350), drafter="lookup", gamma=256, drafter_options={"lookup": {"min_match": 1}})
    prompts = ["a, b, " * (30 + i) for i in range(8)]
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    found = engine.generate(prompts, params)
    for prompt, one in zip(prompts, found, strict=True):
        assert one.prompt_tokens + len(one.token_ids) == 350 and one.finish_reason == "length"
        assert one.token_ids == engine.generate(prompt, params, gamma=0).token_ids
        assert not one.report.warnings
    assert sum(one.report.accepted for one in found) > 100


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_going_on_from_the_ids_is_one_run(temperature):
    """B37: two halves joined are the whole, in tokens and in text; noise is keyed by absolute position."""
    engine = shared_engine()
    prompt = engine.encode(CODE)
    params = SamplingParams(temperature=temperature, seed=9, max_tokens=80, ignore_eos=True)
    whole = engine.generate(prompt, params)
    half = dataclasses.replace(params, max_tokens=40)
    first = engine.generate(prompt, half)
    second = engine.generate([*prompt, *first.token_ids], half)
    assert first.token_ids + second.token_ids == whole.token_ids
    assert first.text + second.text == whole.text
