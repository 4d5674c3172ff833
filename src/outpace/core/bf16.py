"""bfloat16 in numpy, which has no such type: kept as its bits, uint16, the upper half of a float32's."""

from __future__ import annotations

import numpy as np

from .types import Array


def to_bf16(values: Array) -> Array:
    """The bits of float32 ``values`` rounded to nearest, ties to even; NaN stays NaN. uint16, alike in shape."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded)


def from_bf16(bits: Array) -> Array:
    """The float32 values of ``bits`` (uint16), alike in shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
