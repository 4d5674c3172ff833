"""Choosing tokens with the C library (csrc/sample.h, csrc/select.h), and what it computes, in numpy.

The numpy twins follow the same rules but not the same rounding of logarithms and exponentials: tests compare
the two, and a process should let one of them decide its tokens. What only compares (top_k, top_p, at_least)
keeps the tokens that the pipeline's torch path keeps.
"""

from __future__ import annotations

import math
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache

import numpy as np

from ..core.errors import NumericsError
from ..core.types import Array, log_total
from .native import Library, open_library


class NoiseKey(Structure):
    """Names the Gumbel noise of one row: Philox key ``seed``, counter (token // 4, position, sample, tag)."""

    _fields_ = [
        ("seed", c_uint64),
        ("position", c_uint32),
        ("sample", c_uint32),
        ("tag", c_uint32),
        ("unused", c_uint32),
    ]


class Sampler:
    """The sampling kernels of one library. ``logits`` are float32 arrays, a row or ``[rows, vocab]``."""

    def __init__(self, library: Library) -> None:
        self._library = library.functions
        self._library.op_argmax.restype = c_int64
        self._library.op_argmax.argtypes = [c_void_p, c_int64, POINTER(c_float)]
        self._library.op_softmax.restype = c_int64
        self._library.op_softmax.argtypes = [c_void_p, c_int64, c_float, c_void_p]
        self._library.op_gumbel.restype = None
        self._library.op_gumbel.argtypes = [NoiseKey, c_void_p, c_int64, c_void_p]
        self._library.op_perturbed_argmax.restype = c_int64
        self._library.op_perturbed_argmax.argtypes = [c_void_p, c_int64, c_double, NoiseKey]
        self._library.op_at_least.restype = c_int64
        self._library.op_at_least.argtypes = [c_void_p, c_int64, c_float, c_void_p]
        self._library.op_top_k.restype = None
        self._library.op_top_k.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
        self._library.op_top_p.restype = c_int64
        self._library.op_top_p.argtypes = [c_void_p, c_int64, c_double, c_void_p, c_void_p]
        self._library.op_quantile.restype = c_int64
        self._library.op_quantile.argtypes = [c_void_p, c_int64, c_int, c_float, c_double]
        self._library.op_total.restype = c_double
        self._library.op_total.argtypes = [c_void_p, c_int64, c_float]

    def argmax(self, logits: Array) -> int:
        """The token with the greatest of ``logits`` ``[vocab]``, the lowest id among equals.

        Raises NumericsError when one is NaN or +inf, or all are -inf; so do the other methods.
        """
        row, greatest = _row(logits), c_float()
        return _token(self._library.op_argmax(row.ctypes.data, row.size, byref(greatest)))

    def softmax(self, logits: Array, temperature: float = 1.0) -> Array:
        """softmax(logits / temperature): ``[vocab]`` float32."""
        row = _row(logits)
        probs = np.empty_like(row)
        _token(self._library.op_softmax(row.ctypes.data, row.size, temperature, probs.ctypes.data))
        return probs

    def at_least(self, values: Array, floor: float) -> Array:
        """Ids of the ``values`` ``[n]`` that are not below ``floor``: int64, ascending. ``values``, here and below,
        hold no NaN."""
        row = _row(values)
        ids = np.empty(row.size, dtype=np.int64)
        size = self._library.op_at_least(row.ctypes.data, row.size, floor, ids.ctypes.data)
        return ids[:size].copy()

    def top_k(self, values: Array, k: int) -> Array:
        """Ids of the ``k`` greatest ``values`` ``[n]``, 0 < k <= n, the lower of equals: int64 ``[k]``, ascending."""
        row = _row(values)
        ids, scratch = np.empty(k, dtype=np.int64), np.empty(2 * k, dtype=np.int64)
        self._library.op_top_k(row.ctypes.data, row.size, k, scratch.ctypes.data, ids.ctypes.data)
        return ids

    def top_p(self, probs: Array, top_p: float) -> Array:
        """Ids of the smallest set of most probable tokens whose mass reaches ``top_p``: int64, ascending, the lower of
        equals. ``probs`` ``[n]`` are summed in float64 from the most probable down; all ids where they fall short."""
        row = _row(probs)
        ids, scratch = np.empty(row.size, dtype=np.int64), np.empty(2 * row.size, dtype=np.int64)
        size = self._library.op_top_p(row.ctypes.data, row.size, top_p, scratch.ctypes.data, ids.ctypes.data)
        return ids[:size].copy()

    def log_total(self, scores: Array, top: float) -> float:
        """log(sum(exp(scores))) of a row ``[n]`` whose greatest score is ``top``."""
        row = _row(scores)
        return top + math.log(self._library.op_total(row.ctypes.data, row.size, top))

    def quantile(self, probs: Array, uniform: float) -> int:
        """The place of ``probs`` ``[n]`` whose stretch of the cumulative distribution holds ``uniform``, a number in
        [0, 1)."""
        row = _row(probs)
        return int(self._library.op_quantile(row.ctypes.data, row.size, 0, 0.0, uniform))

    def quantile_of_scores(self, scores: Array, uniform: float) -> int:
        """:meth:`quantile` of softmax(scores)."""
        row, top = _row(scores), c_float()
        _token(self._library.op_argmax(row.ctypes.data, row.size, byref(top)))
        return int(self._library.op_quantile(row.ctypes.data, row.size, 1, top.value, uniform))

    def gumbel(self, key: NoiseKey, ids: Array | int) -> Array:
        """Standard Gumbel noise of token ``ids`` (int64; a number n means 0 .. n - 1): float64, alike in shape."""
        count = ids if isinstance(ids, int) else ids.size
        noise = np.empty(count, dtype=np.float64)
        kept = None if isinstance(ids, int) else np.ascontiguousarray(ids, dtype=np.int64)
        self._library.op_gumbel(key, None if kept is None else kept.ctypes.data, count, noise.ctypes.data)
        return noise

    def perturbed_argmax(self, logits: Array, temperature: float, key: NoiseKey) -> int:
        """argmax of logits / temperature + Gumbel noise, in float64: a draw from the softmax, keyed by ``key``."""
        row = _row(logits)
        return _token(self._library.op_perturbed_argmax(row.ctypes.data, row.size, temperature, key))


@cache
def default_sampler() -> Sampler | None:
    """The kernels of the best library that this CPU runs; None where there is none."""
    library = open_library()
    return None if library is None else Sampler(library)


def row_log_total(scores: Array) -> float:
    """log(sum(exp(scores))) of a row ``[n]``, by the kernels where there are any and the row is float32."""
    sampler = default_sampler() if scores.dtype == np.float32 else None
    return log_total(scores) if sampler is None else sampler.log_total(scores, float(scores.max()))


def _row(logits: Array) -> Array:
    return np.ascontiguousarray(logits, dtype=np.float32)


def _token(token: int) -> int:
    if token < 0:
        raise NumericsError("a row of logits holds NaN or +inf, or nothing but -inf")
    return int(token)
