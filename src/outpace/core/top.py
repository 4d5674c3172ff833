"""The greatest values of a row, without sorting the row."""

from __future__ import annotations

import numpy as np

from .types import Array

_BLOCK = 64  # values whose greatest is looked at first


def top(values: Array, count: int) -> Array:
    """Places of the ``count`` greatest of ``values`` ``[n]``, the greatest first and the lower of equals: int64
    ``[min(count, n)]``. ``values`` holds no NaN.

    They lie in blocks whose greatest value is among the ``count`` greatest of all blocks.
    """
    size = values.size
    whole = size // _BLOCK * _BLOCK
    places = np.arange(size) if whole <= 4 * count * _BLOCK else None
    if places is None:
        greatest = values[:whole].reshape(-1, _BLOCK).max(axis=1)
        blocks = np.flatnonzero(greatest >= np.partition(greatest, -count)[-count])
        inside = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        places = np.concatenate((inside, np.arange(whole, size)))
    best: Array = places[np.argsort(-values[places], kind="stable")[:count]]
    return best
