"""What the machine can do at the moment: read bandwidth, and seconds of a pass beside it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import numpy as np

from ..control.costs import time_pass
from ..core.protocols import Runtime
from ..core.threads import default_threads
from ..core.types import Chunk

_PROBE_BYTES = 1 << 28  # far more than caches hold
_PARTS = 16  # so that a thread that is held up leaves the rest to others; chosen by hand


class Bandwidth:
    """Measures how fast memory can be read: sums over parts of 256 MiB on ``threads`` (None: as by default)."""

    def __init__(self, nbytes: int = _PROBE_BYTES, threads: int | None = None) -> None:
        self._words = np.ones(nbytes // 8, dtype=np.int64)
        self._parts = np.array_split(self._words, _PARTS)
        self._pool = ThreadPoolExecutor(threads or default_threads().count)

    def measure(self, repeats: int = 4) -> float:
        """Bytes a second, the best of some repeats."""
        return self._words.nbytes / min(self.seconds() for _ in range(repeats))

    def seconds(self, times: int = 1) -> float:
        """Seconds that reading everything so many times takes."""
        start = perf_counter()
        for _ in range(times):
            list(self._pool.map(np.sum, self._parts))  # numpy sums without the interpreter lock
        return perf_counter() - start

    def beside(self, runtime: Runtime, *, cached: int, repeats: int) -> tuple[list[float], list[float]]:
        """Seconds of passes over one row, and bytes a second, in turns: of a machine whose memory changes by the minute
        only these two together say something."""
        passes, reading = [], []
        with _passes(runtime, cached, 1) as one_pass:
            for _ in range(repeats + 2):
                passes.append(one_pass(1))
                reading.append(4 * self._words.nbytes / self.seconds(4))
        return passes[2:], reading[2:]  # the first ones warm up


@contextmanager
def _passes(runtime: Runtime, cached: int, most: int) -> Iterator[Callable[[int], float]]:
    """A function that makes a pass over so many rows, at most ``most``, and returns its seconds."""
    cached = max(1, min(cached, runtime.context - most))
    cache = runtime.new_cache()
    slot = cache.open(cached + most)
    ids = [1 + i % 97 for i in range(cached)]
    try:
        for start in range(0, cached, 256):
            part = ids[start : start + 256]
            runtime.forward([Chunk(slot, part, logits_from=len(part))], cache)
        yield partial(time_pass, runtime, cache, slot)
    finally:
        cache.close(slot)


def prefill_seconds(runtime: Runtime, tokens: int = 512, *, chunk: int = 256, repeats: int = 3) -> float:
    """Seconds to read a prompt of ``tokens`` tokens in pieces of ``chunk``: the median."""
    cache, found = runtime.new_cache(), []
    for _ in range(repeats):
        slot = cache.open(tokens)
        try:
            begin = perf_counter()
            for start in range(0, tokens, chunk):
                part = [1 + i % 97 for i in range(start, min(tokens, start + chunk))]
                runtime.forward([Chunk(slot, part, logits_from=len(part) - 1)], cache)
            found.append(perf_counter() - begin)
        finally:
            cache.close(slot)
    return statistics.median(found)


def between(costs: Mapping[int, float], rows: float) -> float:
    """The cost of a number of rows that need not be whole: on the straight line between its neighbours."""
    known = sorted(costs)
    if rows <= known[0]:
        return costs[known[0]]
    for low, high in itertools.pairwise(known):
        if rows <= high:
            return costs[low] + (costs[high] - costs[low]) * (rows - low) / (high - low)
    return costs[known[-1]] * rows / known[-1]
