"""The native runtime against the torch runtime, and its promise that a row's bits depend on nothing else."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.helpers.native_models import random_checkpoint, small_config

from outpace.core.bf16 import to_bf16
from outpace.core.errors import CacheError, ContextError, ModelError, ParameterError
from outpace.core.types import Chunk, log_total, softmax
from outpace.kernels.native import available, open_library
from outpace.runtimes.native import NativeRuntime

pytestmark = pytest.mark.skipif(not available(), reason="the C kernels are not built")
QKV_BIAS = ("q_bias", "k_bias", "v_bias")
SHAPES = {
    "grouped": small_config(),
    "biased": small_config(*QKV_BIAS, "o_bias", "gate_bias", "up_bias", "down_bias", tied=True),
    "odd": small_config(
        hidden=32, heads=5, kv_heads=1, head_dim=10, intermediate=64, inv_freq=(1.0, 0.3, 0.1, 0.03, 0.01)
    ),
    "normed": small_config("q_norm", "k_norm", rope_scale=1.2),
    "in part": small_config(
        *("q_norm", "v_bias", "up_bias"), heads=5, kv_heads=5, head_dim=10, inv_freq=(1.0, 0.3, 0.1, 0.03, 0.01)
    ),
}
KINDS = ["F32", "F16", "BF16", "Q4_0", "Q8_0"]


def native(config, kind="F32", **options):
    options = {"weights": "file", "threads": 2} | options
    return NativeRuntime(random_checkpoint(config, kind), config, **options)


def reference(config, kind="F32"):
    torch = pytest.importorskip("torch")
    from outpace.runtimes.torch_decoder import Decoder
    from outpace.runtimes.torch_runtime import TorchRuntime

    return TorchRuntime(Decoder.from_tensors(config, random_checkpoint(config, kind).tensors, torch.float64))


def random_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 127, count).tolist()


def random_tree(count, seed=0):
    rng = np.random.default_rng(seed)
    return [int(rng.integers(-1, i)) if i else -1 for i in range(count)]


def divergence(a, b):
    """Mean KL(b || a) of rows of logits, in nats."""
    rows = zip(a.astype(np.float64), b.astype(np.float64), strict=True)
    return np.mean([(softmax(q) * (q - log_total(q) - p + log_total(p))).sum() for p, q in rows])


def one_by_one(runtime, tokens):
    """Logits [tokens, vocab] of decoding one token at a time."""
    cache = runtime.new_cache()
    slot = cache.open(len(tokens))
    return np.stack([runtime.forward([Chunk(slot, [token])], cache).logits[0][0] for token in tokens])


@pytest.mark.parametrize("variant", available())
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torch_in_float(shape, variant):
    config = SHAPES[shape]
    ours = native(config, kv_dtype="float32", library=open_library(variant))
    theirs = reference(config)
    results = []
    want = ["hidden", "layer.0", "layer.2"]
    for runtime in (ours, theirs):
        cache = runtime.new_cache()
        a, b = cache.open(120), cache.open(50)
        runtime.forward([Chunk(a, random_tokens(45), logits_from=45), Chunk(b, random_tokens(3, 1))], cache)
        results.append(
            runtime.forward(
                [Chunk(b, random_tokens(4, 2), logits_from=2), Chunk(a, random_tokens(17, 3), random_tree(17))],
                cache,
                want,
            )
        )
        assert cache.length(a) == 62 and cache.length(b) == 7
    for mine, other in zip(results[0].logits, results[1].logits, strict=True):
        np.testing.assert_allclose(mine, np.stack(list(other)), rtol=1e-5, atol=1e-5)
    for name in want:
        for mine, other in zip(results[0].features[name], results[1].features[name], strict=True):
            np.testing.assert_allclose(mine, np.stack(list(other)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_weights_are_exact_with_float_activations(kind):
    config = small_config(*QKV_BIAS)
    logits = [
        one_by_one(runtime, random_tokens(40))
        for runtime in (native(config, kind, activations="float", kv_dtype="float32"), reference(config, kind))
    ]
    np.testing.assert_allclose(logits[0], logits[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16"])
def test_rounded_activations_stay_close(kind):
    config = small_config()
    a, b = one_by_one(native(config, kind), random_tokens(60)), one_by_one(reference(config, kind), random_tokens(60))
    assert 0 < divergence(a, b) < 1e-3


@pytest.mark.parametrize(
    ("kind", "kv_dtype"), [("F32", "float32"), ("Q8_0", "bfloat16"), ("BF16", "bfloat16"), ("Q4_0", "float32")]
)
def test_a_row_has_the_same_bits_in_any_company(kind, kv_dtype):
    """One token at a time, prompts in pieces of 1..16 rows, several sessions, 1 to 3 threads: one answer."""
    config = small_config(*QKV_BIAS, "q_norm", "k_norm")
    runtimes = [native(config, kind, kv_dtype=kv_dtype, threads=threads) for threads in (1, 2, 3)]
    tokens = random_tokens(136)
    expected = one_by_one(runtimes[0], tokens)
    for rows, runtime in itertools.product((3, 8, 16, 136), runtimes):
        cache = runtime.new_cache()
        other, slot = cache.open(500), cache.open(150)
        got = []
        for start in range(0, len(tokens), rows):
            neighbours = Chunk(other, random_tokens(rows % 5 + 1, start))
            result = runtime.forward([neighbours, Chunk(slot, tokens[start : start + rows])], cache)
            got.append(result.logits[1])
            cache.keep(other, 0, range(min(cache.length(other), 40)))
        assert np.array_equal(np.concatenate(got), expected)


@pytest.mark.parametrize("variant", available())
def test_a_tree_has_the_bits_of_its_chains(variant):
    config = small_config("q_norm", "k_norm")
    runtime = native(config, "Q8_0", library=open_library(variant))
    prompt, nodes, parents = random_tokens(61), random_tokens(40, 1), random_tree(40)
    cache = runtime.new_cache()
    slot = cache.open(120)
    runtime.forward([Chunk(slot, prompt)], cache)
    tree = runtime.forward([Chunk(slot, nodes, parents)], cache).logits[0]
    for leaf in range(0, 40, 6):
        path = _path(parents, leaf)
        chain = one_by_one(runtime, prompt + [nodes[i] for i in path])
        assert np.array_equal(tree[path], chain[61:])
    # What keep() leaves of the tree continues like the chain.
    path = max((_path(parents, leaf) for leaf in range(40)), key=len)
    cache.keep(slot, 61, path)
    after = runtime.forward([Chunk(slot, [5])], cache).logits[0]
    assert np.array_equal(after[0], one_by_one(runtime, prompt + [nodes[i] for i in path] + [5])[-1])


def _path(parents, node):
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def test_a_poisoned_neighbour_spoils_nobody():
    """NaN and huge values: in another slot's entries, in stale entries, and in later rows of the same slot."""
    config = small_config()
    runtime = native(config, "Q8_0")
    tokens = random_tokens(30)
    expected = one_by_one(runtime, tokens)
    cache = runtime.new_cache()
    bad, slot = cache.open(60), cache.open(60)
    for poison in (np.nan, 3e38):
        runtime.forward([Chunk(bad, tokens[:20])], cache)
        for storage in cache.storage(bad):
            storage.fill(to_bf16(np.float32([poison]))[0])
        for storage in cache.storage(slot):
            storage.fill(0x7FC0)  # stale: the slot is empty
        got = [runtime.forward([Chunk(bad, [1, 2]), Chunk(slot, tokens[:20])], cache).logits[1]]
        parents = [-1, *range(9), -1, 10]  # a branch beside the real one
        rows = runtime.forward([Chunk(slot, [*tokens[20:], 7, 8], parents), Chunk(bad, [3])], cache)
        got.append(rows.logits[0][:10])
        assert np.array_equal(np.concatenate(got), expected)
        assert not np.isfinite(rows.logits[1]).all() or poison == 3e38
        cache.keep(slot, 0, [])
        cache.keep(bad, 0, [])


@pytest.mark.parametrize(
    "kept", [[3, 126, 0, 77], [*range(40)], [*range(30), 31, 90, 91], [125, 126], [0], [126], [*range(127)]]
)
def test_pruned_head_gives_the_kept_logits_and_no_others(kept):
    config = small_config()
    whole, pruned = native(config, "Q8_0"), native(config, "Q8_0", head_rows=np.array(kept))
    expected = np.full((5, 127), -np.inf)
    expected[:, kept] = one_by_one(whole, [1, 2, 3, 4, 5])[:, kept]
    cache = pruned.new_cache()
    together = pruned.forward([Chunk(cache.open(5), [1, 2, 3, 4, 5])], cache).logits[0]
    assert np.array_equal(together, expected)
    assert np.array_equal(one_by_one(pruned, [1, 2, 3, 4, 5]), expected)


@pytest.mark.parametrize(
    ("weights", "bound"), [("f32", 1e-8), ("bf16", 1e-4), ("q8", 1e-3), ("q4", 0.1), ("q4_0", 0.1)]
)
def test_rounding_at_load(weights, bound):
    config = small_config()
    a = one_by_one(native(config, "F32", weights=weights), random_tokens(60))
    b = one_by_one(native(config, "F32", kv_dtype="float32"), random_tokens(60))
    assert abs(divergence(a, b)) < max(bound, 1e-4)


def test_mistakes_are_refused_before_anything_is_written():
    config = small_config()
    runtime = native(config)
    cache = runtime.new_cache()
    slot = cache.open(10)
    for chunk, error in [
        (Chunk(slot, [127]), ParameterError),
        (Chunk(slot, []), ParameterError),
        (Chunk(slot, [1, 2], [-1, 1]), ParameterError),
        (Chunk(slot, [1, 2], [-1]), ParameterError),
        (Chunk(slot, [1], logits_from=-1), ParameterError),
        (Chunk(slot, [1] * 11), CacheError),
        (Chunk(99, [1]), CacheError),
        (Chunk(cache.open(400), [1] * 300), ContextError),
    ]:
        with pytest.raises(error):
            runtime.forward([Chunk(slot, [1]), chunk] if chunk.slot != slot else [chunk], cache)
    with pytest.raises(ParameterError):
        runtime.forward([Chunk(slot, [1])], cache, ["layer.9"])
    with pytest.raises(CacheError):
        runtime.forward([Chunk(slot, [1]), Chunk(slot, [1])], cache)
    assert cache.length(slot) == 0 and not any(storage.any() for storage in cache.storage(slot))
    with pytest.raises(CacheError):
        native(config, kv_dtype="float32").forward([Chunk(slot, [1])], cache)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
def test_nan_weights_are_refused_by_name(kind):
    config = small_config()
    checkpoint = random_checkpoint(config, kind)
    name = "model.layers.1.mlp.up_proj.weight"
    raw = checkpoint.tensors[name].data
    raw[5, :4] = 0xFF
    with pytest.raises(ModelError, match="up_proj"):
        NativeRuntime(checkpoint, config, threads=1)


def test_two_engines_in_two_threads_share_nothing():
    config = small_config()
    runtimes = [native(config, "Q8_0"), native(config, "Q8_0", threads=1), native(config, "Q4_0")]
    expected = [one_by_one(runtime, random_tokens(30)) for runtime in runtimes]
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(one_by_one, runtime, random_tokens(30)) for runtime in runtimes * 2]
        for job, logits in zip(jobs, expected * 2, strict=True):
            assert np.array_equal(job.result(), logits)
