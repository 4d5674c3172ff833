"""What a model's passes cost on this machine: measured once at load, and kept for the next time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter

import platformdirs

from ..core.cache import KVCache
from ..core.protocols import Runtime
from ..core.threads import default_threads
from ..core.types import Chunk
from ..runtimes.loading import LoadedModel
from ..version import __version__

# All numbers here were chosen by hand: a curve good to a few percent within the seconds that a first load may take.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_PREFILL_ROWS = 128  # of the pass that shows what a prefill costs
_CACHED, _LONG = 128, 1024  # entries behind the passes that are measured
_LONG_ROWS = 4  # of the passes that show what more rows cost for attending to many entries
_ATTENTION_PAIRS = 5
_SWEEPS, _LEAST_SWEEPS = 12, 3
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True)
class PassCosts:
    """Seconds of a model's pass.

    ``seconds[i]``: over ``rows[i]`` rows of one sequence behind ``cached`` entries. ``per_entry``: seconds for one
    cached entry that one row attends to, ``per_entry_row`` for each further row that attends to it. ``per_text_token``:
    seconds for each token of a prefill, many a pass and without logits; 0 where that was not measured.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    cached: int = 0
    per_entry: float = 0.0
    per_entry_row: float = 0.0
    per_text_token: float = 0.0

    def of(self, rows: float, entries: int | None = None) -> float:
        """Seconds of a pass over ``rows`` rows of one sequence behind ``entries`` (by default ``cached``) entries."""
        entries = self.cached if entries is None else entries
        return max(_LEAST_SECONDS, self.base(rows) + self.attention(rows, entries))

    def base(self, rows: float) -> float:
        """What a pass over ``rows`` rows, of whatever sequences, costs but for attending to cached entries: between two
        measured points on the line through them, beyond the last point on the line through the last two. (The one
        place where a cost curve is read between its points.)"""
        if len(self.rows) == 1:
            return self.seconds[0] - self.attention(rows, self.cached)
        right = min(max(1, bisect_right(self.rows, rows)), len(self.rows) - 1)
        r0, r1, s0, s1 = self.rows[right - 1], self.rows[right], self.seconds[right - 1], self.seconds[right]
        return s0 + (s1 - s0) * (rows - r0) / (r1 - r0) - self.attention(rows, self.cached)

    def attention(self, rows: float, entries: int) -> float:
        """What ``rows`` rows of one sequence cost for attending to ``entries`` cached entries."""
        return entries * (self.per_entry + self.per_entry_row * (rows - 1))

    @property
    def by_rows(self) -> dict[int, float]:
        """The measured points: seconds by rows."""
        return dict(zip(self.rows, self.seconds, strict=True))

    @classmethod
    def of_points(cls, points: Mapping[int, float]) -> PassCosts:
        """The curve through seconds by rows: the inverse of :attr:`by_rows`."""
        rows = sorted(points)
        return cls(tuple(rows), tuple(points[n] for n in rows))

    @property
    def per_prompt_token(self) -> float:
        """Seconds for each token of a prefill; from the pass over most rows where nothing else is known, which is too
        much, since its rows have logits."""
        return self.per_text_token or self.seconds[-1] / self.rows[-1]

    def relative(self, rows: float) -> float:
        """v(rows): a pass over ``rows`` rows / over one."""
        return self.of(rows) / self.of(1)


def measure_passes(
    runtime: Runtime, *, rows: Sequence[int] = ROWS, limit_seconds: float = 3.0, cached: int = _CACHED
) -> PassCosts:
    """Time passes over each number of rows, the first of which is 1, each beside a pass over one row, behind ``cached``
    entries or half of what the model's context has. Takes about
    ``limit_seconds``, more where the least number of sweeps takes longer; numbers of rows that do not come up within
    the time are left out, and so is the pass over a text where it seems to take more.

    Medians count, of the ratio within each pair: a machine may be faster in one second than in the next, and one row
    must not have been measured in another one. (The fastest passes are those of seconds in which memory was quick,
    where one row gains most: more rows then look dearer than they are in most rounds.)"""
    cached = min(cached, runtime.context // 2)
    rows = [n for n in rows if n <= runtime.context - cached]
    cache, start = runtime.new_cache(), perf_counter()
    slot = filled_slot(cache, cached, max(rows))
    time_pass(runtime, cache, slot, 1)  # the first pass pays for buffers and page tables
    ratios: dict[int, list[float]] = {n: [] for n in rows[1:]}  # by rows: of one of the passes to the one before it
    ones = [time_pass(runtime, cache, slot, 1)]
    for sweep in range(_SWEEPS):
        for n, each in ratios.items():
            if perf_counter() - start > limit_seconds and sweep >= (_LEAST_SWEEPS if n <= 8 else 0):
                break
            ones.append(time_pass(runtime, cache, slot, 1))
            each.append(time_pass(runtime, cache, slot, n) / max(ones[-1], _LEAST_SECONDS))
    cache.close(slot)
    usual = max(median(ones), _LEAST_SECONDS)
    relative = {1: 1.0} | {n: median(each) for n, each in ratios.items() if each}
    # Nor does a pass cost more than one over more rows: where it seems to, most tries of it were disturbed.
    rising = list(accumulate(reversed(relative.values()), min))[::-1]
    seconds = tuple(max(usual * ratio, _LEAST_SECONDS) for ratio in rising)
    found = PassCosts(tuple(relative), seconds, cached, *_attention(runtime, cache, cached))
    if _PREFILL_ROWS * found.per_prompt_token > limit_seconds:
        return found
    return replace(found, per_text_token=_prefill(runtime, cache, limit_seconds / 3))


def _prefill(runtime: Runtime, cache: KVCache, limit_seconds: float) -> float:
    """Seconds for each token of a prefill: of up to three passes, none of which begins after ``limit_seconds``."""
    rows = min(_PREFILL_ROWS, runtime.context)
    slot = filled_slot(cache, 0, rows)
    found: list[float] = []
    while len(found) < 3 and sum(found) < limit_seconds:
        found.append(time_pass(runtime, cache, slot, rows, logits_from=rows))
    cache.close(slot)
    return max(median(found), _LEAST_SECONDS) / rows


def _attention(runtime: Runtime, cache: KVCache, cached: int) -> tuple[float, float]:
    """Seconds for each cached entry: with one row, and for each further row. Medians of the differences of pairs."""
    long = min(_LONG, runtime.context - _LONG_ROWS)
    if long <= 2 * cached:
        return 0.0, 0.0
    more: dict[int, list[float]] = {1: [], _LONG_ROWS: []}  # by rows: seconds behind many entries less behind few
    few, many_entries = (filled_slot(cache, entries, _LONG_ROWS) for entries in (cached, long))
    for _ in range(_ATTENTION_PAIRS):
        for n, found in more.items():
            found.append(-time_pass(runtime, cache, few, n) + time_pass(runtime, cache, many_entries, n))
    for slot in (few, many_entries):
        cache.close(slot)
    one, many = (max(0.0, median(found)) / (long - cached) for found in more.values())
    return one, max(0.0, many - one) / (_LONG_ROWS - 1)


def filled_slot(cache: KVCache, entries: int, rows: int) -> int:
    """A slot with ``entries`` entries whose memory is really there: pages never written to are read too fast."""
    slot = cache.open(entries + rows)
    for part in cache.storage(slot):
        part[...] = 0
    cache.advance(slot, entries)
    return slot


def time_pass(runtime: Runtime, cache: KVCache, slot: int, rows: int, logits_from: int = 0) -> float:
    """Seconds of a pass over ``rows`` rows, those from ``logits_from`` on with logits; it leaves the slot as it was."""
    kept = cache.length(slot)
    start = perf_counter()
    runtime.forward([Chunk(slot, [0] * rows, logits_from=logits_from)], cache)
    seconds = perf_counter() - start
    cache.keep(slot, kept, [])
    return seconds


def load_pass_costs(model: LoadedModel, directory: Path | None = None) -> PassCosts:
    """The model's costs on this machine, from the file that an earlier load wrote, or measured now and written
    there (``directory``: :func:`costs_dir` by default; a directory that cannot be written is no error)."""
    identity = identify(model)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    file = (directory or costs_dir()) / f"{model.name}-{digest[:12]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["identity"] == identity:
            return from_dict(stored["costs"])
    costs = measure_passes(model.runtime)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(json.dumps({"identity": identity, "costs": asdict(costs)}, indent=1), encoding="utf-8")
        part.replace(file)
    return costs


def from_dict(stored: dict[str, object]) -> PassCosts:
    """The inverse of ``dataclasses.asdict``. Raises TypeError or ValueError for what is no cost curve."""
    given = dict(stored)
    rows = tuple(int(n) for n in given.pop("rows"))  # type: ignore[attr-defined]
    seconds = tuple(float(s) for s in given.pop("seconds"))  # type: ignore[attr-defined]
    if not rows or len(rows) != len(seconds) or sorted(set(rows)) != list(rows) or min(seconds) <= 0:
        raise ValueError(f"no cost curve: rows {rows}, seconds {seconds}")
    return PassCosts(rows, seconds, **given)  # type: ignore[arg-type]


def costs_dir() -> Path:
    """Where measured costs lie: ``costs`` below the user's cache directory for Outpace."""
    return Path(platformdirs.user_cache_dir("outpace", appauthor=False)) / "costs"


def identify(model: LoadedModel) -> dict[str, object]:
    """What a model's costs depend on: the model as it lies in memory, the machine, and the code."""
    runtime = model.runtime
    return {
        "name": model.name,
        "file_bytes": model.path.stat().st_size if model.path.is_file() else 0,
        "bytes": model.nbytes,
        "weights": model.weights,
        "backend": model.backend,
        "kernels": getattr(runtime, "variant", ""),
        "threads": getattr(runtime, "threads", 1),
        "dtype": str(runtime.capabilities().dtype),
        "context": runtime.context,
        "machine": machine(),
        "outpace": __version__,
        "measured": ["medians of pairs", _ATTENTION_PAIRS, *ROWS, f"{_PREFILL_ROWS} of a text"],
    }


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return name


def machine() -> str:
    """The processor, and how many threads this process computes with where nobody names a number."""
    return f"{cpu_name()}, {default_threads()}"
