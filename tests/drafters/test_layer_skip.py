"""The target's own layers as its draft: the same weights, the same cache, and a set that calibration chose."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.helpers.native_models import random_checkpoint, small_config
from tests.helpers.shipped import model
from tests.helpers.toys import BLOCK, MATCH, RATIO, SAMPLED, decode, distance, plain, remembered, session

from outpace import SamplingParams, load
from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import DrafterError, ParameterError
from outpace.core.protocols import Parts
from outpace.core.types import Chunk
from outpace.drafters.common.own_cache import OwnCacheDraft
from outpace.drafters.layer_skip import Config, create
from outpace.drafters.layer_skip.choice import Choice, choose_layers, draft_cost
from outpace.runtimes.loading import LoadedModel
from outpace.runtimes.native import NativeRuntime
from outpace.sampling.random_source import KeyedRandomSource

PROMPT = "def read(path):\n    with open(path) as f:\n        return"
V = 3
TARGET = remembered(hashed_logits(V, 1))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 2), 0.4))
backends = pytest.mark.parametrize("backend", ["native", "torch"])


def parts_of(target: LoadedModel) -> Parts:
    return Parts(target.runtime.vocab_size, target=target.runtime, target_model=target)


# ---- drafting on the target's cache


@pytest.mark.parametrize("rule", [RATIO, BLOCK], ids=["ratio", "block"])
@pytest.mark.parametrize(
    "params", [SAMPLED, SamplingParams(), SamplingParams(temperature=1.5, top_k=2)], ids=["T 1", "T 0", "top-k"]
)
def test_the_distribution_of_the_output_is_the_targets(rule, params):
    def make(rule):
        return OwnCacheDraft(ToyRuntime(DRAFT, V))

    assert distance(TARGET, V, make, rule, gamma=2, count=3, params=params) < 1e-9


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_under_match_every_answer_is_plain_decodings(params):
    accepted = 0
    for seed in range(3):
        for gamma in (1, 4):
            one = session(count=16, gamma=gamma, rng=KeyedRandomSource(seed), params=params)
            found = decode(TARGET, V, OwnCacheDraft(ToyRuntime(DRAFT, V)), MATCH, one)
            assert found == tuple(plain(TARGET, KeyedRandomSource(seed), params, one.tokens[:2], 16))
            assert not one.report.warnings
            accepted += one.report.accepted
    assert accepted > 0


def test_entries_are_dropped_even_when_drafting_fails():
    """A pass that raises in mid-draft leaves the target's cache as it was."""

    class Failing(ToyRuntime):
        def forward(self, chunks, cache, want=()):
            forward = super().forward(chunks, cache, want)
            if self.forwards > 3:
                raise RuntimeError("out of order")
            return forward

    one = session(count=12, gamma=4, params=SAMPLED)
    found = decode(TARGET, V, OwnCacheDraft(Failing(DRAFT, V)), MATCH, one)  # checks the cache after every round
    assert found == tuple(plain(TARGET, KeyedRandomSource(0), SAMPLED, [0, 1], 12))
    assert "out of order" in one.report.warnings[0]


def test_without_a_loop_there_is_nothing_to_draft_from():
    one = session(count=9, gamma=3, rule=MATCH)
    assert len(OwnCacheDraft(ToyRuntime(DRAFT, V)).propose([one], [3])[0]) == 0


# ---- layers of a model


@backends
@pytest.mark.parametrize("accept", ["match", "ratio", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_layers_draft_what_the_target_says(backend, accept, temperature):
    target = model("tiny", backend=backend)
    every = target.runtime.with_layers(range(target.config.layers))
    engine = load(
        target, drafter="layer_skip", accept=accept, drafter_options={"layer_skip": {"without": "2"}}, gamma=3
    )
    engine._drafters["layer_skip"]._runtime = every
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=24, ignore_eos=True)
    report = engine.generate(PROMPT, params).report
    assert report.alpha == 1 and report.block_efficiency == 4
    assert report.seconds_draft_prefill == 0  # the prompt is read once


@backends
def test_answers_are_plain_decodings_in_any_batch(backend):
    engine = load(
        model("tiny", backend=backend),
        drafter="layer_skip",
        drafter_options={"layer_skip": {"without": "1,2"}},
        controller="fixed",
    )
    params = [
        SamplingParams(temperature=t, seed=i, max_tokens=20 + i, ignore_eos=True) for i, t in enumerate((0, 1, 1))
    ]
    prompts = [PROMPT, "The river rose for nine days, and", "class"]
    drafted = engine.generate(prompts, params)
    alone = [engine.generate(prompt, p, gamma=0) for prompt, p in zip(prompts, params, strict=True)]
    assert [result.token_ids for result in drafted] == [result.token_ids for result in alone]
    assert sum(result.report.accepted for result in drafted) > 0
    assert not any(result.report.warnings for result in drafted)


@backends
def test_a_part_reads_and_writes_its_own_layers_entries_only(backend):
    runtime = model("tiny", backend=backend).runtime
    layers, kept = runtime.layers, [0, 3]
    cache = runtime.new_cache()
    slot = cache.open(16)
    runtime.forward([Chunk(slot, [5, 6, 7])], cache)
    keys, values = cache.storage(slot)
    before = keys.copy(), values.copy()
    part = runtime.with_layers(kept)
    logits = part.forward([Chunk(slot, [8])], cache).logits[0]
    assert cache.length(slot) == 4
    for now, then in zip((keys, values), before, strict=True):
        assert np.array_equal(now[:, :, :3], then[:, :, :3])
        changed = [layer for layer in range(layers) if not np.array_equal(now[layer], then[layer])]
        assert changed == kept
    # Without the entries of layer 3 it says something else, without those of the others the same.
    for layer, matters in ((3, True), (1, False)):
        cache.keep(slot, 3, [])
        keys[layer, :, :3] += 1
        assert np.array_equal(part.forward([Chunk(slot, [8])], cache).logits[0], logits) != matters
        keys[layer, :, :3] = before[0][layer, :, :3]


@backends
def test_entries_below_the_first_layer_left_out_are_the_targets_own(backend):
    runtime = model("tiny", backend=backend).runtime
    caches = []
    for part in (runtime, runtime.with_layers([0, 1, 3, 4])):
        cache = runtime.new_cache()
        slot = cache.open(8)
        part.forward([Chunk(slot, [5, 6, 7])], cache)
        caches.append(cache.storage(slot)[0])
    whole, skipped = caches
    assert np.array_equal(whole[:2], skipped[:2])
    assert not np.array_equal(whole[3], skipped[3])


def test_a_part_shares_the_weights_memory():
    whole = model("tiny", backend="native").runtime
    part = whole.with_layers([1, 2], head=100)
    assert part._weights.layers == [whole._weights.layers[1], whole._weights.layers[2]]
    assert part._weights.head.struct.data == whole._weights.head.struct.data
    decoder = model("tiny", backend="torch").runtime.decoder
    other = model("tiny", backend="torch").runtime.with_layers([1, 2], head=100).decoder
    assert other.blocks[0] is decoder.blocks[1]
    assert other.head.weight.data_ptr() == decoder.head.weight.data_ptr()


@backends
@pytest.mark.parametrize("head", [0, 1, 100, 1023, 4096])
def test_a_part_may_have_fewer_outputs(backend, head):
    runtime = model("tiny", backend=backend).runtime
    rows = []
    for outputs in (0, head):
        cache = runtime.new_cache()
        part = runtime.with_layers([0, 1], outputs)
        rows.append(np.stack(list(part.forward([Chunk(cache.open(4), [5, 6])], cache).logits[0])))
    kept = min(head or runtime.vocab_size, runtime.vocab_size)
    assert np.allclose(rows[1][:, :kept], rows[0][:, :kept], rtol=0, atol=0 if backend == "native" else 1e-5)
    assert bool((rows[1][:, kept:] == -np.inf).all())


def test_what_is_left_out_must_exist_and_leave_some():
    for without in ("5", "-1", "x", "1,,2", "0,1,2,3,4"):
        with pytest.raises(ParameterError, match="layer_skip"):
            load(model("tiny"), drafter="layer_skip", drafter_options={"layer_skip": {"without": without}})
    with pytest.raises(ParameterError, match="head"):
        Config(head=-1)
    with pytest.raises(DrafterError, match="decoder-only"):
        create(Config(), Parts(V, target=ToyRuntime(TARGET, V)))


# ---- calibration


def idle_layer(layer: int) -> LoadedModel:
    """A small random model, one of whose layers adds nothing to the stream."""
    config = small_config(layers=4)
    checkpoint = random_checkpoint(config)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        stored = checkpoint.tensors[f"model.layers.{layer}.{name}.weight"]
        checkpoint.tensors[f"model.layers.{layer}.{name}.weight"] = dataclasses.replace(stored, data=stored.raw() * 0)
    runtime = NativeRuntime(checkpoint, config, weights="f32", kv_dtype="float32", threads=1)
    return dataclasses.replace(model("tiny"), runtime=runtime, config=config, tokenizer=Letters())


class Letters:
    """Bytes are their own tokens."""

    def encode(self, text: str, add_special: bool) -> list[int]:
        return list(text.encode("ascii"))


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_calibration_finds_the_layer_that_does_nothing(layer):
    told: list[str] = []
    found = choose_layers(idle_layer(layer), tell=told.append, tokens=24, rows_cost=lambda rows: 1.0)
    assert layer in found.left_out
    first = told[0]
    assert first.startswith(f"without {layer}: alpha 1.000 greedy and 1.000 at temperature 1")
    assert len(told) == len(set(told)) >= 2
    assert str(found) in told


def test_calibration_weighs_what_drafting_costs():
    """Where verifying rows costs more, the same text calls for drafting less; the choice is the best of those tried."""
    target = model("tiny")
    told: list[str] = []
    cheap = choose_layers(target, tell=told.append, tokens=24, rows_cost=lambda rows: 1.0)
    predicted = [float(line.split("predicted ")[1].split("x")[0]) for line in told]
    assert cheap.speedup == pytest.approx(max(predicted), abs=1e-3)
    dear = choose_layers(target, tell=told.append, tokens=24, rows_cost=lambda rows: 1 + 0.5 * (rows - 1))
    assert dear.speedup < cheap.speedup
    measured = choose_layers(target, tell=told.append, tokens=24, most=2)
    assert measured.speedup > 0


def test_cost_is_the_share_of_the_weights_that_are_read():
    config = model("tiny").config
    assert draft_cost(config, 0) == 1
    per_layer = 1 - draft_cost(config, 1)
    assert draft_cost(config, 3) == pytest.approx(1 - 3 * per_layer)
    assert draft_cost(config, 1, head=config.vocab_size // 2) < draft_cost(config, 1)


def test_without_names_a_calibration_runs(monkeypatch):
    asked = {}

    def choose(target, *, head, tell):
        asked.update(target=target, head=head)
        return Choice((2,), 0.5, 0.5, 0.8, 1, 1.0)

    monkeypatch.setattr("outpace.drafters.layer_skip.choose_layers", choose)
    target = model("tiny")
    drafter = create(Config(head=64), parts_of(target))
    assert asked == {"target": target, "head": 64}
    assert len(drafter._runtime._weights.layers) == 4
