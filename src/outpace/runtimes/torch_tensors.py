"""Between torch's tensors and what passes between rooms, which is numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, overload

import numpy as np
import torch
from torch import Tensor

from ..core.threads import default_threads
from ..core.types import Array, Rows

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Loadable(Protocol):
    """A weight that is still in its file; ``load`` raises ModelError when it is not finite."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def load(self, dtype: str) -> Array: ...


class TensorRows:
    """Rows of a tensor ``[rows, width]``, fetched from its device when they are looked at (the Rows protocol)."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Array]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> Array: ...

    @overload
    def __getitem__(self, key: slice | list[int]) -> TensorRows: ...

    def __getitem__(self, key: int | slice | list[int]) -> Array | TensorRows:
        found = self.tensor[key]
        return found.numpy(force=True) if isinstance(key, int) else TensorRows(found)


def tensor_of(rows: Rows) -> Tensor:
    """The rows as a tensor ``[rows, width]``, in the memory that they have."""
    return rows.tensor if isinstance(rows, TensorRows) else torch.from_numpy(np.asarray(rows))


def load_tensor(stored: Loadable, dtype: torch.dtype) -> Tensor:
    """A stored weight as a tensor: float32, float64 or bfloat16."""
    values = stored.load(NAMES[dtype])
    if dtype == torch.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(dtype)
    return torch.from_numpy(values)


def limit_threads(threads: int | None) -> None:
    """Let torch compute with ``threads``; None: with no more than are useful here, since it knows no quotas."""
    torch.set_num_threads(threads or min(torch.get_num_threads(), default_threads().count))
