"""A linear layer on few rows, where reading the weights is what costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Without AVX-512, torch multiplies bfloat16 matrices row by row: 5 rows cost 6 times one row, 44 rows 30 times.
# Widening a tile that stays in cache, to multiply in float32, costs 4 and 8 times (docs/log.md): better, not good.
_WIDE_PRODUCTS = not torch.backends.cpu.get_cpu_capability().startswith("AVX512")
_DIRECT_ROWS = 2  # up to here the direct product is still the faster one
_TILE_VALUES = 1 << 18  # 1 MiB as float32


@dataclass
class Linear:
    """``x @ weight.T + bias``. ``weight`` ``[out, in]``; ``bias`` ``[out]`` in the activations' dtype."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` ``[n, in]`` -> ``[n, out]`` in the dtype of ``x``."""
        if self.weight.dtype == x.dtype:
            return F.linear(x, self.weight, self.bias)
        if _WIDE_PRODUCTS and x.shape[0] > _DIRECT_ROWS:
            y = tiled_linear(x, self.weight)
        else:
            y = F.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias


def tiled_linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` with ``weight`` widened to the dtype of ``x`` tile by tile: ``[n, out]``."""
    columns = weight.shape[1]
    buffer = x.new_empty(max(64, _TILE_VALUES // columns), columns)
    parts = []
    for tile in weight.split(buffer.shape[0]):
        wide = buffer[: tile.shape[0]].copy_(tile)
        parts.append(F.linear(x, wide))  # [n, rows of the tile]
    return torch.cat(parts, -1)
