"""Linear layers on packed weights: the Python side of csrc/linear*.c and csrc/pack*.c.

Weights keep exactly the values of the file. Integer kinds multiply int8 activations (one scale per 32 values, as in
llama.cpp's Q8_0), bf16 weights bf16 activations, F16 and F32 weights float activations. Every row's result is the
same bit for bit for any number of rows, any neighbours and any number of threads.
"""

from __future__ import annotations

import ctypes
import dataclasses
import weakref
from ctypes import byref
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ..core.errors import ModelError, ParameterError
from ..core.types import Array
from .native import Library, Matrix

# GGUF's own numbers.
KINDS = MappingProxyType(
    {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
    | {"BF16": 30}
)
ACTIVATIONS = MappingProxyType({"f32": 0, "bf16": 1, "int8": 2})
# uint16: the bits of bfloat16, see core/bf16.py
FLOAT_KINDS = MappingProxyType({np.dtype(t): kind for t, kind in (("f4", "F32"), ("f2", "F16"), ("u2", "BF16"))})
# What `--weights` names, as the kinds that float weights are rounded to at load.
ROUNDED_KINDS = MappingProxyType({"q8": "Q8_0", "q4": "Q4_1", "q4_0": "Q4_0", "bf16": "BF16"})


def fast_activations(kind: str) -> str:
    """The activation format that a kind's fast path multiplies with: "int8", "bf16" or "f32"."""
    return {"BF16": "bf16", "F16": "f32", "F32": "f32"}.get(kind, "int8")


@dataclass(eq=False)
class PackedMatrix:
    """A weight matrix in the kernels' layout: ``rows`` outputs, ``cols`` inputs, ``nbytes`` of packed memory.

    ``struct`` is the C view; it borrows this object's memory, which is freed by ``close`` or with the object.
    """

    library: Library
    kind: str
    rows: int
    cols: int
    nbytes: int
    struct: Matrix
    _free: weakref.finalize = field(repr=False)  # type: ignore[type-arg]

    def close(self) -> None:
        """Frees the packed memory now; the matrix cannot be used afterwards."""
        self._free()


def first_rows(matrix: PackedMatrix, rows: int) -> PackedMatrix:
    """The first ``rows`` outputs of a packed matrix, in its own memory: it must outlive what is returned."""
    struct = Matrix.from_buffer_copy(matrix.struct)
    struct.rows = rows
    return dataclasses.replace(matrix, rows=rows, nbytes=matrix.nbytes * rows // matrix.rows, struct=struct)


def pack(library: Library, raw: Array, kind: str, cols: int, *, threads: int, name: str = "matrix") -> PackedMatrix:
    """Packs rows as a GGUF file holds them: ``raw`` is uint8 ``[rows, row bytes]``, possibly memory-mapped.

    ``name`` (file and tensor) appears in errors: ModelError when the kind is not supported, ``cols`` does not suit it
    or the rows have the wrong size; MemoryError when the packed copy does not fit.
    """
    rows, address, stride, _ = _rows_of(raw, name)
    if kind not in KINDS:
        raise ModelError(f"{name}: quantization {kind} is not supported; supported: {', '.join(KINDS)}")
    row_bytes = library.functions.op_raw_row_bytes(KINDS[kind], cols)
    if row_bytes < 0:
        raise ModelError(f"{name}: {cols} columns are no whole number of {kind} blocks")
    if row_bytes != stride:
        raise ModelError(f"{name}: a row of {cols} {kind} values has {row_bytes} bytes, the data has {stride}")
    matrix = _allocate(library, kind, rows, cols, name)
    code = library.functions.op_pack(KINDS[kind], address, stride, rows, cols, matrix.struct.data, threads)
    return _checked(matrix, code, name)


def pack_float(
    library: Library, weight: Array, kind: str | None = None, *, threads: int, name: str = "matrix"
) -> PackedMatrix:
    """Packs float weights ``[rows, cols]`` (float32, float16, or uint16 for the bits of bfloat16), as they are or
    rounded to ``kind``.

    Kinds: "F32", "F16", "BF16"; "Q8_0" and "Q4_0" (32 values share a scale, symmetric) and "Q4_1" (they share a
    scale and a minimum). Raises ModelError as ``pack`` does.
    """
    if weight.dtype not in FLOAT_KINDS:
        raise ModelError(f"{name}: cannot pack {weight.dtype}; float32, float16 and uint16 (bfloat16) can be")
    source = FLOAT_KINDS[weight.dtype]
    kind = kind or source
    if kind not in {*FLOAT_KINDS.values(), *ROUNDED_KINDS.values()}:
        raise ModelError(f"{name}: float weights cannot be rounded to {kind}, only to Q8_0, Q4_0, Q4_1, BF16, F16, F32")
    rows, address, stride, _keep = _rows_of(np.ascontiguousarray(weight).view(np.uint8), name)
    cols = int(weight.shape[1])
    if library.functions.op_packed_bytes(KINDS[kind], rows, cols) < 0:
        raise ModelError(f"{name}: {cols} columns are no multiple of 32, which {kind} needs")
    matrix = _allocate(library, kind, rows, cols, name)
    code = library.functions.op_pack_float(
        KINDS[kind], KINDS[source], address, stride, rows, cols, matrix.struct.data, threads
    )
    return _checked(matrix, code, name)


def matmul(matrix: PackedMatrix, x: Array, *, threads: int, activations: str | None = None) -> Array:
    """``x @ weight.T``: ``x`` float32 ``[rows, cols]`` -> float32 ``[rows, matrix.rows]``.

    ``activations``: "int8", "bf16" or "f32" instead of the kind's fast format ("f32" multiplies the unrounded
    activations with the exact weights, slowly: the reference). Raises ParameterError on wrong shapes and formats.
    """
    activations = activations or fast_activations(matrix.kind)
    if activations not in {"f32", fast_activations(matrix.kind)}:
        raise ParameterError(f"{matrix.kind} weights have no {activations!r} activations")
    if x.ndim != 2 or x.shape[1] != matrix.cols or x.dtype != np.float32:
        raise ParameterError(f"need float32 [rows, {matrix.cols}] activations, got {x.dtype} {list(x.shape)}")
    if threads < 1:
        raise ParameterError(f"threads must be at least 1, got {threads}")
    x = np.ascontiguousarray(x)
    rows = int(x.shape[0])
    out = np.empty((rows, matrix.rows), dtype=np.float32)  # [rows, outputs]
    form = ACTIVATIONS[activations]
    functions = matrix.library.functions
    scratch = np.empty(functions.op_act_bytes(form, rows, matrix.cols) + 64, dtype=np.uint8)
    aligned = (scratch.ctypes.data + 63) // 64 * 64
    if rows:
        functions.op_linear(
            byref(matrix.struct), form, x.ctypes.data, matrix.cols, rows, out.ctypes.data, matrix.rows,
            aligned, threads,
        )  # fmt: skip
    return out


def unpack(matrix: PackedMatrix, first: int = 0, count: int | None = None) -> Array:
    """The packed weights' values, rows ``first .. first + count - 1``: float32 ``[count, cols]``."""
    count = matrix.rows - first if count is None else count
    if first < 0 or count < 0 or first + count > matrix.rows:
        raise ParameterError(f"rows {first} .. {first + count} are not within the matrix' {matrix.rows}")
    out = np.empty((count, matrix.cols), dtype=np.float32)
    pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    matrix.library.functions.op_unpack_rows(byref(matrix.struct), first, count, pointer)
    return out


def dequantize(library: Library, raw: Array, kind: str, cols: int, *, threads: int) -> Array:
    """Rows as a GGUF file holds them (uint8 ``[rows, row bytes]``) as float32 ``[rows, cols]``."""
    rows, address, stride, _keep = _rows_of(raw, "matrix")
    if stride != library.functions.op_raw_row_bytes(KINDS[kind], cols):
        raise ParameterError(f"not rows of {cols} {kind} values: {stride} bytes each")
    out = np.empty((rows, cols), dtype=np.float32)
    library.functions.op_dequantize_rows(KINDS[kind], address, stride, rows, cols, out.ctypes.data, threads)
    return out


def _rows_of(raw: Array, name: str) -> tuple[int, int, int, object]:
    """Rows, address, bytes from row to row, and what keeps the memory alive."""
    if raw.ndim != 2 or raw.dtype != np.uint8 or not raw.flags.c_contiguous:
        raise ModelError(f"{name}: need contiguous uint8 [rows, row bytes], got {raw.dtype} {list(raw.shape)}")
    return int(raw.shape[0]), int(raw.ctypes.data), int(raw.shape[1]), raw


def _allocate(library: Library, kind: str, rows: int, cols: int, name: str) -> PackedMatrix:
    nbytes = library.functions.op_packed_bytes(KINDS[kind], rows, cols)
    if nbytes < 0:
        raise ModelError(f"{name}: a matrix of {rows} x {cols} cannot be packed")
    address = library.functions.op_alloc(nbytes)
    if not address:
        raise MemoryError(f"{name}: no memory for {nbytes} bytes of packed weights")
    struct = Matrix(KINDS[kind], ACTIVATIONS[fast_activations(kind)], rows, cols, address)
    matrix = PackedMatrix(library, kind, rows, cols, nbytes, struct, None)  # type: ignore[arg-type]
    matrix._free = weakref.finalize(matrix, library.functions.op_free, address, nbytes)
    return matrix


def _checked(matrix: PackedMatrix, code: int, name: str) -> PackedMatrix:
    if code:
        matrix.close()
        raise MemoryError(f"{name}: packing {matrix.rows} x {matrix.cols} as {matrix.kind} failed for want of memory")
    return matrix
