"""The linears' slow twins in numpy: what the C kernels compute, in float64 and in plain sight."""

from __future__ import annotations

import numpy as np

from ..core.bf16 import from_bf16, to_bf16
from ..core.types import Array

GROUP = 32


def quantize_activations(x: Array) -> tuple[Array, Array]:
    """Rounds float32 ``[rows, cols]`` to int8 groups of 32: values ``[rows, groups, 32]``, scales ``[rows, groups]``.

    ``scale = max|x| / 127``; ``q = round(x * (127 / max|x|))``, ties to even. A group of zeros (below 1e-35) has the
    scale 0; one with NaN or infinity the scale NaN. Bit for bit what op_quantize_rows does.
    """
    groups = x.reshape(x.shape[0], -1, GROUP)  # [rows, groups, 32]
    most = np.abs(groups).max(axis=-1)  # [rows, groups]; NaN when one of them is
    finite = np.isfinite(most)
    used = finite & (most > 1e-35)
    safe = np.where(used, most, np.float32(1))
    factor = np.where(used, np.float32(127) / safe, np.float32(0))
    clean = np.where(used[..., None], groups, np.float32(0))
    q = np.rint(clean * factor[..., None]).astype(np.int8)
    scale = np.where(used, safe / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    return q, scale


def round_activations(x: Array, activations: str) -> Array:
    """The activations that a matmul multiplies, as float64 ``[rows, cols]``; ``activations``: "int8", "bf16", "f32"."""
    if activations == "int8":
        q, scale = quantize_activations(x)
        return (q.astype(np.float64) * scale.astype(np.float64)[..., None]).reshape(x.shape)
    return (from_bf16(to_bf16(x)) if activations == "bf16" else x).astype(np.float64)


def linear(weight: Array, x: Array, activations: str) -> Array:
    """``x @ weight.T`` in float64, of exact ``weight`` ``[outputs, cols]`` and rounded ``x`` ``[rows, cols]``."""
    return round_activations(x, activations) @ weight.astype(np.float64).T
