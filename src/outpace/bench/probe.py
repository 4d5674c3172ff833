"""What the machine can do at the moment: read bandwidth, and seconds of a pass beside it."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from ..control.pass_costs import filled_slot, time_pass
from ..core.protocols import Runtime
from ..core.threads import default_threads

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
        cache, cached = runtime.new_cache(), min(cached, runtime.context - 1)
        slot = filled_slot(cache, cached, 1)
        for _ in range(repeats + 2):
            passes.append(time_pass(runtime, cache, slot, 1))
            reading.append(4 * self._words.nbytes / self.seconds(4))
        cache.close(slot)
        return passes[2:], reading[2:]  # the first ones warm up


def prefill_seconds(runtime: Runtime, tokens: int = 512, *, chunk: int = 256, repeats: int = 3) -> float:
    """Seconds of the prefill of a prompt of ``tokens`` tokens in pieces of ``chunk``: the median."""
    cache, found = runtime.new_cache(), []
    for _ in range(repeats):
        seconds = 0.0
        for start in range(0, tokens, chunk):
            rows = min(chunk, tokens - start)
            slot = filled_slot(cache, start, rows)
            seconds += time_pass(runtime, cache, slot, rows, logits_from=rows - 1)
            cache.close(slot)
        found.append(seconds)
    return statistics.median(found)
