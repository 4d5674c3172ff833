"""Packed rows, trees, rollback and checks of the torch runtime, with the cache it writes to."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outpace.core.cache import KVCache
from outpace.core.errors import CacheError, ContextError, ParameterError
from outpace.core.types import Chunk
from outpace.families.family import decoder_config
from outpace.families.table import expected_tensors
from outpace.runtimes.torch_decoder import Decoder
from outpace.runtimes.torch_runtime import TorchRuntime
from outpace.runtimes.torch_tensors import NAMES

CONTEXT, VOCAB, ROWS = 40, 50, 56


def make_runtime() -> TorchRuntime:
    config = decoder_config(
        {
            "model_type": "qwen2",
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 40,
            "vocab_size": ROWS,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "rope_theta": 50.0,
        }
    )
    config = dataclasses.replace(config, vocab_size=VOCAB)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.4
        for name, shape in expected_tensors(config).items()
    }
    return TorchRuntime(Decoder.from_tensors(config, tensors, torch.float64))


RUNTIME = make_runtime()


def fresh_logits(tokens: Sequence[int]) -> Tensor:
    """Logits of every position, from an empty cache in one chunk."""
    cache = RUNTIME.new_cache()
    return RUNTIME.forward([Chunk(cache.open(CONTEXT), tokens)], cache).logits[0].tensor


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def entries(cache: KVCache, slot: int) -> tuple[Tensor, Tensor]:
    keys, values = cache.storage(slot)
    keys, values = (torch.from_numpy(part[:, :, : cache.length(slot)].copy()) for part in (keys, values))
    return keys, values


PROMPT = [7, 3, 3, 49, 0, 12, 8]


@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6), (3,), (2, 6)])
def test_chunked_prefill_equals_whole(cuts: tuple[int, ...]) -> None:
    cache = RUNTIME.new_cache()
    slot = cache.open(len(PROMPT))
    edges = (0, *cuts, len(PROMPT))
    parts = [RUNTIME.forward([Chunk(slot, PROMPT[a:b])], cache).logits[0].tensor for a, b in itertools.pairwise(edges)]
    close(torch.cat(parts), fresh_logits(PROMPT))
    assert cache.length(slot) == len(PROMPT)


def path_of(parents: Sequence[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


TREE_TOKENS, TREE_PARENTS = [5, 9, 11, 2, 9, 30, 1], [-1, 0, 0, 1, 1, 2, -1]


def test_every_tree_row_equals_its_chain() -> None:
    cache = RUNTIME.new_cache()
    slot = cache.open(30)
    RUNTIME.forward([Chunk(slot, PROMPT)], cache)
    logits = RUNTIME.forward([Chunk(slot, TREE_TOKENS, TREE_PARENTS)], cache).logits[0].tensor
    for row in range(len(TREE_TOKENS)):
        chain = [TREE_TOKENS[i] for i in path_of(TREE_PARENTS, row)]
        close(logits[row], fresh_logits(PROMPT + chain)[-1])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_kept_path_continues_like_a_fresh_cache(data: st.DataObject) -> None:
    """Random trees, a random path kept: cache contents and what follows equal the plain chain's."""
    size = data.draw(st.integers(1, 8))
    tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(size)]
    row = data.draw(st.integers(-1, size - 1))
    path = path_of(parents, row)
    cache = RUNTIME.new_cache()
    slot = cache.open(30)
    RUNTIME.forward([Chunk(slot, PROMPT)], cache)
    RUNTIME.forward([Chunk(slot, tokens, parents)], cache)
    cache.keep(slot, len(PROMPT), path)
    after = RUNTIME.forward([Chunk(slot, [4, 44])], cache).logits[0].tensor
    survivors = PROMPT + [tokens[i] for i in path] + [4, 44]
    other = RUNTIME.new_cache()
    twin = other.open(30)
    close(after, RUNTIME.forward([Chunk(twin, survivors)], other).logits[0].tensor[-2:])
    for ours, theirs in zip(entries(cache, slot), entries(other, twin), strict=True):
        close(ours, theirs)


def test_ragged_batch_equals_solo_runs() -> None:
    """Prefill, a tree, a single row and a chain share one pass; slots are not in order."""
    cache = RUNTIME.new_cache()
    slots = [cache.open(20) for _ in range(4)]
    starts = [[], PROMPT, PROMPT[:2], [1]]
    for slot, start in zip(slots, starts, strict=True):
        if start:
            RUNTIME.forward([Chunk(slot, start)], cache)
    chunks = [
        Chunk(slots[2], [6]),
        Chunk(slots[1], TREE_TOKENS, TREE_PARENTS, logits_from=2),
        Chunk(slots[0], PROMPT, logits_from=len(PROMPT)),
        Chunk(slots[3], [2, 3, 4], logits_from=1),
    ]
    forward = RUNTIME.forward(chunks, cache, ["hidden", "layer.1"])
    assert [rows.shape for rows in forward.logits] == [(1, VOCAB), (5, VOCAB), (0, VOCAB), (2, VOCAB)]
    for chunk, logits, hidden in zip(chunks, forward.logits, forward.features["hidden"], strict=True):
        solo = RUNTIME.new_cache()
        slot = solo.open(20)
        start = starts[slots.index(chunk.slot)]
        if start:
            RUNTIME.forward([Chunk(slot, start)], solo)
        alone = RUNTIME.forward([Chunk(slot, chunk.tokens, chunk.parents)], solo, ["hidden"])
        close(logits.tensor, alone.logits[0].tensor[chunk.logits_from :])
        close(hidden.tensor, alone.features["hidden"][0].tensor)
        for ours, theirs in zip(entries(cache, chunk.slot), entries(solo, slot), strict=True):
            close(ours, theirs)


def test_logits_are_the_head_of_the_hidden_feature_without_padding() -> None:
    cache = RUNTIME.new_cache()
    forward = RUNTIME.forward([Chunk(cache.open(9), PROMPT)], cache, ["hidden", "layer.1"])
    head = RUNTIME.decoder.head.weight
    assert head.shape[0] == ROWS and forward.logits[0].shape == (len(PROMPT), VOCAB)
    close(forward.logits[0].tensor, forward.features["hidden"][0].tensor @ head[:VOCAB].T)
    last = forward.features["layer.1"][0].tensor
    normed = last / (last.square().mean(-1, keepdim=True) + 1e-6).sqrt() * RUNTIME.decoder.norm
    close(normed, forward.features["hidden"][0].tensor)


def test_float32_and_bfloat16_give_float32_logits() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        config = RUNTIME.decoder.config
        generator = torch.Generator().manual_seed(3)
        tensors = {n: torch.randn(s, generator=generator) * 0.4 for n, s in expected_tensors(config).items()}
        runtime = TorchRuntime(Decoder.from_tensors(config, tensors, dtype))
        cache = runtime.new_cache()
        logits = runtime.forward([Chunk(cache.open(9), PROMPT)], cache).logits[0].tensor
        assert logits.dtype == torch.float32 and runtime.capabilities().dtype == NAMES[dtype]
        tensors = {n: t.to(dtype).double() for n, t in tensors.items()}
        exact = TorchRuntime(Decoder.from_tensors(config, tensors, torch.float64))
        cache = exact.new_cache()
        reference = exact.forward([Chunk(cache.open(9), PROMPT)], cache).logits[0].tensor
        tolerance = 1e-4 if dtype == torch.float32 else 0.1
        torch.testing.assert_close(logits.double(), reference, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("tokens", "parents", "error", "words"),
    [
        ([VOCAB], None, ParameterError, f"token {VOCAB}"),
        ([3, -1], None, ParameterError, "token -1"),
        ([], None, ParameterError, "at least one"),
        ([1, 2], [-1], ParameterError, "1 parents"),
        ([1, 2], [-1, 1], ParameterError, "row 1 has parent 1"),
        ([1, 2], [-2, 0], ParameterError, "row 0 has parent -2"),
        ([1] * (CONTEXT - 6), None, ContextError, f"context of {CONTEXT}"),
        ([1] * 30, [-1] * 30, CacheError, "30 more do not fit"),
    ],
)
def test_bad_chunks_are_refused_before_anything_is_written(
    tokens: list[int], parents: list[int] | None, error: type[Exception], words: str
) -> None:
    cache = RUNTIME.new_cache()
    good, bad = cache.open(20), cache.open(30)
    RUNTIME.forward([Chunk(bad, PROMPT)], cache)
    before = [t.copy() for slot in (good, bad) for t in cache.storage(slot)]
    with pytest.raises(error, match=words):
        RUNTIME.forward([Chunk(good, PROMPT), Chunk(bad, tokens, parents)], cache)
    after = [t for slot in (good, bad) for t in cache.storage(slot)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert (cache.length(good), cache.length(bad)) == (0, len(PROMPT))


def test_a_wide_tree_at_the_edge_counts_depth_not_rows() -> None:
    cache = RUNTIME.new_cache()
    slot = cache.open(CONTEXT + 4)
    RUNTIME.forward([Chunk(slot, [1] * (CONTEXT - 1))], cache)
    logits = RUNTIME.forward([Chunk(slot, [2, 3, 4], [-1, -1, -1])], cache).logits[0].tensor
    close(logits[2], fresh_logits([1] * (CONTEXT - 1) + [4])[-1])


def test_other_misuse_is_named() -> None:
    cache = RUNTIME.new_cache()
    slot = cache.open(9)
    with pytest.raises(ParameterError, match=r"layer\.9"):
        RUNTIME.forward([Chunk(slot, [1])], cache, ["layer.9"])
    with pytest.raises(CacheError, match="twice"):
        RUNTIME.forward([Chunk(slot, [1]), Chunk(slot, [2])], cache)
    with pytest.raises(CacheError, match="not open"):
        RUNTIME.forward([Chunk(slot + 1, [1])], cache)
    with pytest.raises(ParameterError, match="logits_from"):
        RUNTIME.forward([Chunk(slot, [1], None, -1)], cache)
    assert RUNTIME.forward([], cache, ["hidden"]).logits == []


def test_append_five_keep_two_append_two() -> None:
    """Contents equal a fresh cache fed the surviving tokens; keeping what is not there raises (bug B14)."""
    cache, other = RUNTIME.new_cache(), RUNTIME.new_cache()
    slot, twin = cache.open(12), other.open(12)
    RUNTIME.forward([Chunk(slot, PROMPT[:5])], cache)
    cache.keep(slot, 0, [0, 1])
    assert cache.length(slot) == 2
    RUNTIME.forward([Chunk(slot, [20, 21])], cache)
    RUNTIME.forward([Chunk(twin, [*PROMPT[:2], 20, 21])], other)
    for ours, theirs in zip(entries(cache, slot), entries(other, twin), strict=True):
        close(ours, theirs)
    for base, path in ((0, [0, 4]), (4, [0]), (5, []), (-1, []), (0, [1, 1]), (0, [2, 1]), (2, [-1, 0])):
        with pytest.raises(CacheError):
            cache.keep(slot, base, path)
    assert cache.length(slot) == 4


def test_storage_never_moves() -> None:
    """100 rounds with scripted rejections on one storage; logits equal a full recompute (bug B11)."""
    cache = RUNTIME.new_cache()
    slot = cache.open(CONTEXT)
    pointers = [t.ctypes.data for t in cache.storage(slot)]
    tokens = [1]
    RUNTIME.forward([Chunk(slot, tokens)], cache)
    for turn in range(100):
        if len(tokens) > CONTEXT - 6:
            tokens = tokens[:3]
            cache.keep(slot, 3, [])
        drafted = [(turn * 7 + i * 3) % VOCAB for i in range(4)]
        base = cache.length(slot)
        logits = RUNTIME.forward([Chunk(slot, drafted)], cache).logits[0].tensor
        accepted = turn % 5
        cache.keep(slot, base, range(accepted))
        tokens = tokens + drafted[:accepted]
        assert cache.length(slot) == len(tokens)
        if turn % 9 == 0 and accepted:
            close(logits[accepted - 1], fresh_logits(tokens)[-1])
    assert [t.ctypes.data for t in cache.storage(slot)] == pointers and cache.capacity(slot) == CONTEXT


def test_closed_slots_are_gone_and_neighbours_stay() -> None:
    cache = RUNTIME.new_cache()
    first, second = cache.open(8), cache.open(8)
    RUNTIME.forward([Chunk(first, [1, 2]), Chunk(second, [3, 4])], cache)
    held = cache.nbytes
    cache.close(first)
    assert cache.slots == 1 and cache.nbytes == held // 2
    with pytest.raises(CacheError, match="not open"):
        cache.length(first)
    third = cache.open(8)
    assert third not in (first, second)
    close(RUNTIME.forward([Chunk(second, [5])], cache).logits[0].tensor[0], fresh_logits([3, 4, 5])[-1])
