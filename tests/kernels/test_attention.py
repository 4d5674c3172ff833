"""Attention over the cache against its definition in float64, and its row invariance."""

from __future__ import annotations

import numpy as np
import pytest

from outpace.core.bf16 import from_bf16, to_bf16
from outpace.core.types import softmax
from outpace.kernels.native import available, open_library
from outpace.kernels.passes import SlotRows, attention_alone

pytestmark = pytest.mark.skipif(not available(), reason="the C kernels are not built")
NAN, INF = 0x7FC0, 0x7F80  # bfloat16
HEADS = [(4, 2), (3, 3), (12, 2), (60, 1)]
ROWS = [(0, 1, False), (0, 40, False), (31, 2, False), (32, 5, False), (70, 16, True), (5, 70, True)]


def random_tree(rng: np.random.Generator, rows: int) -> list[int]:
    return [int(rng.integers(-1, i)) if i else -1 for i in range(rows)]


def path_of(parents, row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def make_slot(
    rng: np.random.Generator, length: int, rows: int, tree: bool, kv_heads: int, dim: int, dtype: str = "bfloat16"
) -> SlotRows:
    """Two layers of random entries; everything behind them is NaN."""
    keys, values = (rng.standard_normal((2, kv_heads, length + rows + 3, dim), dtype=np.float32) for _ in range(2))
    keys[:, :, length + rows :] = values[:, :, length + rows :] = np.nan
    if dtype == "bfloat16":
        keys, values = to_bf16(keys), to_bf16(values)
    return SlotRows(rows, keys, values, length, random_tree(rng, rows) if tree else None)


def wide(stored: np.ndarray) -> np.ndarray:
    return (from_bf16(stored) if stored.dtype == np.uint16 else stored).astype(np.float64)


def chain_to(slot: SlotRows, row: int) -> SlotRows:
    """The slot as it would be had the row's path been decoded one token at a time."""
    path = path_of(slot.parents or range(-1, slot.rows - 1), row)
    entries = [*range(slot.length), *(slot.length + node for node in path)]
    keys, values = (np.ascontiguousarray(t[:, :, entries]) for t in (slot.keys, slot.values))
    return SlotRows(1, keys, values, len(entries) - 1)


def by_definition(queries: np.ndarray, slot: SlotRows, layer: int) -> np.ndarray:
    rows, heads, dim = queries.shape
    out = np.empty((rows, heads, dim))
    for row in range(rows):
        alone = chain_to(slot, row)
        keys, values = (
            wide(t[layer]).repeat(heads // t.shape[1], 0) for t in (alone.keys, alone.values)
        )  # [heads, entries, dim]
        scores = (keys @ queries[row].astype(np.float64)[:, :, None])[..., 0] / dim**0.5
        weights = np.stack([softmax(head) for head in scores])
        out[row] = (weights[:, None] @ values)[:, 0]
    return out.reshape(rows, -1)


@pytest.mark.parametrize("variant", available())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [8, 24, 64, 128])
def test_equals_its_definition_and_its_chains(variant, dtype, dim):
    rng = np.random.default_rng(dim)
    library = open_library(variant)
    for heads, kv_heads in HEADS:
        for length, rows, tree in ROWS:
            slot = make_slot(rng, length, rows, tree, kv_heads, dim, dtype)
            queries = rng.standard_normal((rows, heads, dim), dtype=np.float32)
            out = attention_alone(library, queries, [slot], 1, kv_heads, 2)
            np.testing.assert_allclose(out, by_definition(queries, slot, 1), rtol=1e-5, atol=1e-5)
            for row in range(0, rows, 9):
                alone = attention_alone(library, queries[row : row + 1], [chain_to(slot, row)], 1, kv_heads, 1)
                assert np.array_equal(alone[0], out[row])


def test_threads_and_neighbours_change_no_bit():
    rng = np.random.default_rng(1)
    library = open_library()
    slots = [make_slot(rng, length, rows, tree, 2, 64) for length, rows, tree in ROWS]
    slots.insert(2, make_slot(rng, 20, 3, False, 2, 64))
    slots[2].keys.fill(NAN)
    queries = rng.standard_normal((sum(slot.rows for slot in slots), 6, 64), dtype=np.float32)
    together = attention_alone(library, queries, slots, 0, 2, 1)
    for threads in (2, 3, 5):
        assert np.array_equal(attention_alone(library, queries, slots, 0, 2, threads), together, equal_nan=True)
    first = 0
    for number, slot in enumerate(slots):
        rows = slice(first, first + slot.rows)
        first += slot.rows
        if number != 2:
            assert np.array_equal(attention_alone(library, queries[rows], [slot], 0, 2, 2), together[rows])
    assert int(np.isnan(together).sum()) == 3 * 6 * 64


def test_later_rows_of_the_same_slot_are_not_looked_at():
    rng = np.random.default_rng(2)
    library = open_library()
    slot = make_slot(rng, 40, 12, False, 1, 32)
    queries = rng.standard_normal((12, 4, 32), dtype=np.float32)
    before = attention_alone(library, queries, [slot], 0, 1, 1)
    slot.keys[:, :, 46:], slot.values[:, :, 46:] = NAN, INF
    after = attention_alone(library, queries, [slot], 0, 1, 1)
    assert np.array_equal(after[:6], before[:6]) and np.isnan(after[6:]).all()


def test_large_scores_do_not_overflow():
    library = open_library()
    keys = np.zeros((1, 1, 50, 16), dtype=np.float32)
    values = np.arange(50, dtype=np.float32).repeat(16).reshape(1, 1, 50, 16)
    keys[0, 0, 37] = 100.0
    out = attention_alone(library, np.full((1, 1, 16), 100, dtype=np.float32), [SlotRows(1, keys, values, 49)], 0, 1, 1)
    assert np.array_equal(out, np.full((1, 16), 37))
