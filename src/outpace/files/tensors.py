"""A weight as its file stores it: shape, encoding, raw bytes, and the way to floating point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ..core.bf16 import from_bf16, to_bf16
from ..core.errors import ModelError
from ..core.types import Array
from .model_file import FileRows

_SLAB_VALUES = 1 << 21  # values decoded at a time by one thread: 8 MiB of float32, small beside any model
FLOATS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}


def block_layout(kind: str) -> tuple[int, int] | None:
    """(values, bytes) of one block of ``kind``; None when this kind cannot be turned into floating point."""
    if kind in FLOATS:
        return 1, FLOATS[kind]
    return _quantized_layout(kind)


@cache
def _quantized_layout(kind: str) -> tuple[int, int] | None:
    import gguf  # slow to import, and needed by GGUF files only

    try:
        qtype = gguf.GGMLQuantizationType[kind]
        values, size = gguf.GGML_QUANT_SIZES[qtype]
        gguf.quants.dequantize(np.zeros((1, size), dtype=np.uint8), qtype)
    except (KeyError, NotImplementedError):
        return None
    return int(values), int(size)


@dataclass(frozen=True)
class StoredTensor:
    """One weight in its file.

    ``name`` is the Hugging Face name, ``stored_name`` the file's own, ``shape`` is ``[outputs, inputs]``,
    ``kind`` is an encoding in GGUF words ("F32", "BF16", "Q4_K", ...). ``data`` is uint8 [rows, bytes per row] in
    file order (a vector is one row), which slicing reads. ``row_order[i]`` is the stored place of row i (of value i
    for a vector) where the file keeps another order, else None.
    """

    name: str
    stored_name: str
    file: Path
    shape: tuple[int, ...]
    kind: str
    data: FileRows | Array
    row_order: Array | None = None

    def raw(self, rows: int | None = None) -> Array:
        """uint8 [rows, bytes per row] in Hugging Face row order, all of them or the first ``rows``, read from the file.
        Raises ModelError when the file has changed."""
        if len(self.shape) > 1 or self.row_order is None:
            return self._stored_rows(0, self.data.shape[0] if rows is None else rows)
        return self.data[:].reshape(self.shape[0], -1)[self.row_order].reshape(1, -1)  # a vector's values

    def load(self, dtype: str = "float32") -> Array:
        """The weight as "float32", "float64", or "bfloat16" (its bits, uint16), decoded slab by slab and rounded to
        nearest even where that is narrower.

        Raises ModelError naming file and tensor if a value is NaN or infinite, in the file or in ``dtype``, and
        naming the file when it has changed.
        """
        rows, row_bytes = self.data.shape
        layout = block_layout(self.kind)
        assert layout is not None  # the reader of the file has refused other kinds
        columns = row_bytes // layout[1] * layout[0]
        narrow = dtype == "bfloat16"
        result = np.empty((rows, columns), dtype=np.uint16 if narrow else dtype)
        step = max(1, _SLAB_VALUES // max(1, columns))

        def decode(start: int) -> bool:
            picked = self._stored_rows(start, min(rows, start + step))
            out = result[start : start + step]
            with np.errstate(all="ignore"):
                values = _to_float(picked, self.kind)  # [slab rows, columns]
                out[:] = to_bf16(values) if narrow else values
                if narrow:
                    return not bool(((out & 0x7F80) == 0x7F80).any())
                # The sum of finite values is finite, or overflows: only then look at each of them.
                return bool(np.isfinite(out.sum())) or bool(np.isfinite(out).all())

        if not all(_in_parallel(decode, range(0, rows, step))):
            raise ModelError(
                f"{self.file}: tensor {self.stored_name!r} holds NaN or infinite values as {dtype}; "
                "the file is damaged, or its values need a wider dtype"
            )
        if self.row_order is not None and len(self.shape) == 1:
            result = result[:, self.row_order]
        return result.reshape(self.shape)

    def _stored_rows(self, start: int, stop: int) -> Array:
        if self.row_order is None or len(self.shape) == 1:
            return self.data[start:stop]
        order = self.row_order[start:stop]
        first = int(order.min())
        return self.data[first : int(order.max()) + 1][order - first]


def _in_parallel(work: Callable[[int], bool], starts: Sequence[int]) -> Iterable[bool]:
    if len(starts) < 2:
        return map(work, starts)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1, len(starts))) as pool:
        return list(pool.map(work, starts))


def _to_float(raw: Array, kind: str) -> Array:
    """uint8 [rows, bytes] -> float [rows, values], writable."""
    raw = np.ascontiguousarray(raw)
    if kind in ("F32", "F64", "F16"):
        return raw.view({"F32": "<f4", "F64": "<f8", "F16": "<f2"}[kind]).copy()
    if kind == "BF16":
        return from_bf16(raw.view("<u2"))
    import gguf

    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
