"""The linears' slow twins in torch: what the C kernels compute, in float64 and in plain sight."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32


def quantize_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds float32 ``[rows, cols]`` to int8 groups of 32: values ``[rows, groups, 32]``, scales ``[rows, groups]``.

    ``scale = max|x| / 127``; ``q = round(x * (127 / max|x|))``, ties to even. A group of zeros (below 1e-35) has the
    scale 0; one with NaN or infinity the scale NaN. Bit for bit what op_quantize_rows does.
    """
    groups = x.reshape(x.shape[0], -1, GROUP)  # [rows, groups, 32]
    most = groups.abs().amax(dim=-1)  # [rows, groups]; NaN when one of them is
    finite = most.isfinite()
    used = finite & (most > 1e-35)
    factor = torch.where(used, 127.0 / most, 0.0)
    clean = torch.where(used.unsqueeze(-1), groups, 0.0)
    q = (clean * factor.unsqueeze(-1)).round().to(torch.int8)
    scale = torch.where(used, most / 127.0, torch.where(finite, 0.0, torch.nan))
    return q, scale


def round_activations(x: Tensor, activations: str) -> Tensor:
    """The activations that a matmul multiplies, as float64 ``[rows, cols]``; ``activations``: "int8", "bf16", "f32"."""
    if activations == "int8":
        q, scale = quantize_activations(x)
        return (q.double() * scale.double().unsqueeze(-1)).reshape(x.shape)
    return (x.bfloat16() if activations == "bf16" else x).double()


def linear(weight: Tensor, x: Tensor, activations: str) -> Tensor:
    """``x @ weight.T`` in float64, of exact ``weight`` ``[outputs, cols]`` and rounded ``x`` ``[rows, cols]``."""
    return round_activations(x, activations) @ weight.double().T
