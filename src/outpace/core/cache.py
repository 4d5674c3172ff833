"""The KV cache: one contract for append, rollback and tree compaction."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .errors import CacheError
from .types import Array

_STORED: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@dataclass
class _Slot:
    keys: Array  # [layers, kv_heads, room, head_dim]
    values: Array  # [layers, kv_heads, room, head_dim]
    capacity: int
    length: int = 0
    written: int = 0  # the greatest length until now: memory behind it has never been touched


def _pages(size: int) -> Array:
    """``size`` zeroed bytes, which the system provides page by page when they are first written.

    Zeroed, because masked attention still multiplies what it masks: stale NaN bits would leak. Not numpy's zeros:
    these may lie in memory that was used before, and from 4 MiB on in pages of 2 MiB.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CacheError(f"no memory for a cache slot of {size >> 20} MiB: {error}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


class KVCache:
    """Keys and values of several sequences, each in a slot of its own.

    A slot's addresses are reserved once, when it is opened, and are written in place: it never moves or grows.
    The memory behind them is taken in blocks of ``block`` entries when these are first written, and is what
    ``nbytes`` counts. Keys are stored after rotary embedding, so that compaction only moves entries. The runtime
    writes entries at ``length`` and then calls :meth:`advance`; the engine calls :meth:`keep`.

    ``dtype``: "float32", "float64", or "bfloat16", which is stored as its bits (uint16).
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype: str) -> None:
        self.layers, self.kv_heads, self.head_dim, self.dtype = layers, kv_heads, head_dim, dtype
        self._stored = _STORED[dtype]
        entry = head_dim * self._stored.itemsize
        self.block = math.lcm(entry, mmap.PAGESIZE) // entry  # fills whole pages in every head of every layer
        self._slots: dict[int, _Slot] = {}
        self._next = 0

    def open(self, capacity: int) -> int:
        """Reserve a slot for ``capacity`` entries and return its number. Raises CacheError where that cannot be."""
        if capacity < 1:
            raise CacheError(f"a cache slot needs room for at least one entry, not {capacity}")
        shape = (2, self.layers, self.kv_heads, self._whole_blocks(capacity), self.head_dim)
        keys, values = _pages(self.bytes_for(capacity)).view(self._stored).reshape(shape)
        entry = _Slot(keys, values, capacity)
        slot = self._next
        self._next += 1
        self._slots[slot] = entry
        return slot

    def copy(self, slot: int, length: int, capacity: int) -> int:
        """A new slot for ``capacity`` entries that begins with the first ``length`` of ``slot``."""
        source = self._get(slot)
        if not 0 <= length <= min(source.length, capacity):
            raise CacheError(f"slot {slot} holds {source.length} entries; {length} cannot be copied to {capacity}")
        new = self.open(capacity)
        entry = self._get(new)
        entry.keys[:, :, :length] = source.keys[:, :, :length]
        entry.values[:, :, :length] = source.values[:, :, :length]
        self.advance(new, length)
        return new

    def close(self, slot: int) -> None:
        """Free a slot."""
        self._get(slot)
        del self._slots[slot]

    def length(self, slot: int) -> int:
        """Number of entries stored in the slot."""
        return self._get(slot).length

    def capacity(self, slot: int) -> int:
        """Number of entries the slot has room for."""
        return self._get(slot).capacity

    def storage(self, slot: int) -> tuple[Array, Array]:
        """The slot's whole keys and values, each ``[layers, kv_heads, room, head_dim]``; ``room`` is ``capacity`` in
        whole blocks."""
        entry = self._get(slot)
        return entry.keys, entry.values

    def advance(self, slot: int, rows: int) -> None:
        """Count ``rows`` entries that the runtime has just written at ``length``."""
        entry = self._get(slot)
        self.require(slot, rows)
        entry.length += rows
        entry.written = max(entry.written, entry.length)

    def require(self, slot: int, rows: int) -> None:
        """Raise CacheError unless ``rows`` more entries fit."""
        entry = self._get(slot)
        if rows < 0 or entry.length + rows > self.capacity(slot):
            raise CacheError(
                f"slot {slot} holds {entry.length} of {self.capacity(slot)} entries; {rows} more do not fit"
            )

    def keep(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Of the entries from ``base`` on, keep those at the offsets ``path``; drop the rest.

        ``path`` holds strictly increasing offsets from ``base``: 0 is the entry at ``base``. Afterwards
        ``length == base + len(path)``. Raises CacheError when an entry named does not exist.
        """
        entry = self._get(slot)
        if not 0 <= base <= entry.length:
            raise CacheError(f"slot {slot} holds {entry.length} entries; cannot roll back to {base}")
        if any(b <= a for a, b in pairwise(path)):
            raise CacheError(f"kept offsets must increase strictly, not {list(path)}")
        if path and not (path[0] >= 0 and base + path[-1] < entry.length):
            raise CacheError(
                f"slot {slot} holds {entry.length - base} entries from {base}; cannot keep offsets {list(path)}"
            )
        moved = next((i for i, offset in enumerate(path) if offset != i), len(path))
        if moved < len(path):
            source = [base + offset for offset in path[moved:]]
            span = slice(base + moved, base + len(path))
            entry.keys[:, :, span] = entry.keys[:, :, source]  # indexing copies first, so overlap is safe
            entry.values[:, :, span] = entry.values[:, :, source]
        entry.length = base + len(path)

    @property
    def slots(self) -> int:
        """Number of open slots."""
        return len(self._slots)

    def slot_bytes(self, slot: int) -> int:
        """Bytes that one slot has taken, for the most entries it has held."""
        return self.bytes_for(self._get(slot).written)

    def bytes_for(self, entries: int) -> int:
        """Bytes that a slot takes for ``entries`` entries."""
        return 2 * self.layers * self.kv_heads * self._whole_blocks(entries) * self.head_dim * self._stored.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes that all open slots have taken."""
        return sum(self.slot_bytes(slot) for slot in self._slots)

    def _whole_blocks(self, entries: int) -> int:
        return -(-entries // self.block) * self.block

    def _get(self, slot: int) -> _Slot:
        try:
            return self._slots[slot]
        except KeyError:
            raise CacheError(f"slot {slot} is not open") from None
