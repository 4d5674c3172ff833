"""Attention over the cache against its definition in float64, and its row invariance."""

from __future__ import annotations

import pytest
import torch

from outpace.kernels.native import available, open_library
from outpace.kernels.passes import SlotRows, attention

pytestmark = pytest.mark.skipif(not available(), reason="the C kernels are not built")
HEADS = [(4, 2), (3, 3), (12, 2), (60, 1)]
ROWS = [(0, 1, False), (0, 40, False), (31, 2, False), (32, 5, False), (70, 16, True), (5, 70, True)]


def random_tree(rows: int) -> list[int]:
    return [int(torch.randint(-1, i, (1,))) if i else -1 for i in range(rows)]


def path_of(parents, row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def make_slot(length: int, rows: int, tree: bool, kv_heads: int, dim: int, dtype: torch.dtype) -> SlotRows:
    """Two layers of random entries; everything behind them is NaN."""
    keys, values = (torch.randn(2, kv_heads, length + rows + 3, dim).to(dtype) for _ in range(2))
    keys[:, :, length + rows :] = values[:, :, length + rows :] = float("nan")
    return SlotRows(rows, keys, values, length, random_tree(rows) if tree else None)


def chain_to(slot: SlotRows, row: int) -> SlotRows:
    """The slot as it would be had the row's path been decoded one token at a time."""
    path = path_of(slot.parents or range(-1, slot.rows - 1), row)
    entries = [*range(slot.length), *(slot.length + node for node in path)]
    keys, values = slot.keys[:, :, entries].contiguous(), slot.values[:, :, entries].contiguous()
    return SlotRows(1, keys, values, len(entries) - 1)


def by_definition(queries: torch.Tensor, slot: SlotRows, layer: int) -> torch.Tensor:
    rows, heads, dim = queries.shape
    out = torch.empty(rows, heads, dim, dtype=torch.float64)
    for row in range(rows):
        alone = chain_to(slot, row)
        keys, values = (
            t[layer].double().repeat_interleave(heads // t.shape[1], 0) for t in (alone.keys, alone.values)
        )  # [heads, entries, dim]
        weights = torch.softmax((keys @ queries[row].double()[:, :, None])[..., 0] / dim**0.5, -1)
        out[row] = (weights[:, None] @ values)[:, 0]
    return out.reshape(rows, -1)


@pytest.mark.parametrize("variant", available())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [8, 24, 64, 128])
def test_equals_its_definition_and_its_chains(variant, dtype, dim):
    torch.manual_seed(dim)
    library = open_library(variant)
    for heads, kv_heads in HEADS:
        for length, rows, tree in ROWS:
            slot = make_slot(length, rows, tree, kv_heads, dim, dtype)
            queries = torch.randn(rows, heads, dim)
            out = attention(library, queries, [slot], 1, kv_heads, 2)
            torch.testing.assert_close(out.double(), by_definition(queries, slot, 1), rtol=1e-5, atol=1e-5)
            for row in range(0, rows, 9):
                alone = attention(library, queries[row : row + 1], [chain_to(slot, row)], 1, kv_heads, 1)
                assert torch.equal(alone[0], out[row])


def test_threads_and_neighbours_change_no_bit():
    torch.manual_seed(1)
    library = open_library()
    slots = [make_slot(length, rows, tree, 2, 64, torch.bfloat16) for length, rows, tree in ROWS]
    slots.insert(2, make_slot(20, 3, False, 2, 64, torch.bfloat16))
    slots[2].keys.fill_(float("nan"))
    queries = torch.randn(sum(slot.rows for slot in slots), 6, 64)
    together = attention(library, queries, slots, 0, 2, 1)
    for threads in (2, 3, 5):
        assert torch.equal(attention(library, queries, slots, 0, 2, threads).nan_to_num(9), together.nan_to_num(9))
    first = 0
    for number, slot in enumerate(slots):
        rows = slice(first, first + slot.rows)
        first += slot.rows
        if number != 2:
            assert torch.equal(attention(library, queries[rows], [slot], 0, 2, 2), together[rows])
    assert int(together.isnan().sum()) == 3 * 6 * 64


def test_later_rows_of_the_same_slot_are_not_looked_at():
    torch.manual_seed(2)
    library = open_library()
    slot = make_slot(40, 12, False, 1, 32, torch.bfloat16)
    queries = torch.randn(12, 4, 32)
    before = attention(library, queries, [slot], 0, 1, 1)
    slot.keys[:, :, 46:], slot.values[:, :, 46:] = float("nan"), float("inf")
    after = attention(library, queries, [slot], 0, 1, 1)
    assert torch.equal(after[:6], before[:6]) and after[6:].isnan().all()


def test_large_scores_do_not_overflow():
    library = open_library()
    keys = torch.zeros(1, 1, 50, 16)
    values = torch.arange(50.0).repeat_interleave(16).reshape(1, 1, 50, 16)
    keys[0, 0, 37] = 100.0
    out = attention(library, torch.full((1, 1, 16), 100.0), [SlotRows(1, keys, values, 49)], 0, 1, 1)
    assert torch.equal(out, torch.full((1, 16), 37.0))
