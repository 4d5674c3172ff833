"""The KV cache: one contract for append, rollback and tree compaction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from .errors import CacheError


@dataclass
class _Slot:
    keys: Tensor  # [layers, kv_heads, capacity, head_dim]
    values: Tensor  # [layers, kv_heads, capacity, head_dim]
    length: int = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # Zeroed, because masked attention still multiplies what it masks: stale NaN bits would leak.
    # numpy's zeros are pages that the system hands out on first touch: a long context costs what it uses.
    flat = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(flat).view(dtype).view(shape)


class KVCache:
    """Keys and values of several sequences, each in a slot of its own.

    A slot's storage is allocated once, when it is opened, and is written in place: it never moves or
    grows. Keys are stored after rotary embedding, so that compaction only moves entries. The runtime
    writes entries at ``length`` and then calls :meth:`advance`; the engine calls :meth:`keep`.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.layers, self.kv_heads, self.head_dim, self.dtype = layers, kv_heads, head_dim, dtype
        self._slots: dict[int, _Slot] = {}
        self._next = 0

    def open(self, capacity: int) -> int:
        """Allocate a slot for ``capacity`` entries and return its number."""
        if capacity < 1:
            raise CacheError(f"a cache slot needs room for at least one entry, not {capacity}")
        shape = (self.layers, self.kv_heads, capacity, self.head_dim)
        entry = _Slot(_zeros(shape, self.dtype), _zeros(shape, self.dtype))
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
        entry.length = length
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
        return int(self._get(slot).keys.shape[2])

    def storage(self, slot: int) -> tuple[Tensor, Tensor]:
        """The slot's whole keys and values, each ``[layers, kv_heads, capacity, head_dim]``."""
        entry = self._get(slot)
        return entry.keys, entry.values

    def advance(self, slot: int, rows: int) -> None:
        """Count ``rows`` entries that the runtime has just written at ``length``."""
        entry = self._get(slot)
        self.require(slot, rows)
        entry.length += rows

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
            source = torch.tensor([base + offset for offset in path[moved:]])
            span = slice(base + moved, base + len(path))
            entry.keys[:, :, span] = entry.keys[:, :, source]  # indexing copies first, so overlap is safe
            entry.values[:, :, span] = entry.values[:, :, source]
        entry.length = base + len(path)

    @property
    def slots(self) -> int:
        """Number of open slots."""
        return len(self._slots)

    def slot_bytes(self, slot: int) -> int:
        """Bytes held by one slot."""
        entry = self._get(slot)
        return entry.keys.nbytes + entry.values.nbytes

    def bytes_for(self, capacity: int) -> int:
        """Bytes that a slot for ``capacity`` entries holds."""
        return 2 * self.layers * self.kv_heads * capacity * self.head_dim * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes held by all open slots."""
        return sum(self.slot_bytes(slot) for slot in self._slots)

    def _get(self, slot: int) -> _Slot:
        try:
            return self._slots[slot]
        except KeyError:
            raise CacheError(f"slot {slot} is not open") from None
