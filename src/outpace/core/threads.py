"""How many threads to compute with, and why: read from the machine, not guessed from the number of its processors.

Passes are bound by memory and end when their slowest thread does. So one thread a physical core, on the fast cores of a
hybrid processor, and no more than the CPU quota of the cgroup lets run at once (rounded up: two threads under a quota
of 1.5 do 1.5 threads' work, one does less).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_FAST = {"cpu_capacity": 0.6, "cpufreq/cpuinfo_max_freq": 0.8}  # of the fastest core's: what still counts as fast
_CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads and where it comes from, in words."""

    count: int
    reason: str

    def __str__(self) -> str:
        return f"{self.count} thread{'s' if self.count > 1 else ''} ({self.reason})"


def default_threads() -> ThreadChoice:
    """What this process should compute with where nobody names a number."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    if sys.platform == "darwin":
        for name, what in (("hw.perflevel0.physicalcpu", "performance"), ("hw.physicalcpu", "physical")):
            if (count := _sysctl(name)) > 0:
                return _choice(count, f"{count} {what} cores", None, os.environ.get("OMP_NUM_THREADS"))
    return choose_threads(Path("/"), allowed, os.environ.get("OMP_NUM_THREADS"))


def choose_threads(root: Path, allowed: Collection[int], omp_num_threads: str | None = None) -> ThreadChoice:
    """The choice for a process that may run on the CPUs ``allowed``, from /proc and /sys below ``root``; a file that
    is missing or strange says nothing. ``omp_num_threads``: the user's own word, which goes before all."""
    cpus = root / _CPUS
    online = _cpu_list(_text(cpus / "online"))
    usable = set(allowed) & online or set(allowed)
    fast = _fast_cores(root, usable)
    siblings = {frozenset(_siblings(cpus, cpu) & fast) or frozenset([cpu]) for cpu in fast}
    kind = "performance cores" if len(fast) < len(usable) else "cores"
    what = f"{len(siblings)} {kind}" + (f" of {len(usable)} CPUs" if len(siblings) < len(usable) else "")
    return _choice(len(siblings), what, _quota(root), omp_num_threads)


def _choice(cores: int, what: str, quota: float | None, omp_num_threads: str | None) -> ThreadChoice:
    first = (omp_num_threads or "").split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return ThreadChoice(int(first), "OMP_NUM_THREADS")
    if quota is not None and (most := max(1, math.ceil(quota))) <= cores:
        return ThreadChoice(most, f"a CPU quota of {quota:g}, {what}")
    return ThreadChoice(max(1, cores), what)


def _fast_cores(root: Path, usable: set[int]) -> set[int]:
    """Those of the CPUs that are not a hybrid processor's slow ones."""
    named = _cpu_list(_text(root / "sys/devices/cpu_core/cpus")) & usable  # Intel's
    if named:
        return named
    for file, share in _FAST.items():
        speeds = {cpu: _number(_text(root / _CPUS / f"cpu{cpu}" / file)) for cpu in usable}
        known = [speed for speed in speeds.values() if speed]
        if len(known) == len(usable):
            return {cpu for cpu, speed in speeds.items() if speed and speed >= share * max(known)}
    return usable


def _siblings(cpus: Path, cpu: int) -> set[int]:
    """CPUs that share the core of ``cpu``, itself among them."""
    topology = cpus / f"cpu{cpu}" / "topology"
    found = _cpu_list(_text(topology / "core_cpus_list")) or _cpu_list(_text(topology / "thread_siblings_list"))
    return found | {cpu}


def _quota(root: Path) -> float | None:
    """CPUs that the cgroup, or one above it, lets this process use at once; the smallest counts."""
    # Root of the mount in its hierarchy, where it is mounted, whether it is version 2, controllers.
    mounts: list[tuple[str, str, bool, list[str]]] = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, kind = line.partition(" - ")[0].split(), line.partition(" - ")[2].split()
        if kind and kind[0] in ("cgroup", "cgroup2") and len(fields) > 4:
            mounts.append((fields[3], fields[4], kind[0] == "cgroup2", kind[-1].split(",")))
    quotas = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, place = (*line.split(":", 2), "", "")[:3]
        for base, point, second, options in mounts:
            if (names != "") == second or (not second and not ("cpu" in names.split(",") and "cpu" in options)):
                continue
            top = root / point.lstrip("/")
            inside = place.removeprefix(base.rstrip("/")) if place.startswith(base.rstrip("/")) else ""
            parts = [part for part in inside.split("/") if part and part != ".."]
            groups = [top.joinpath(*parts[:n]) for n in range(len(parts) + 1)]
            quotas += [quota for group in groups if (quota := _quota_of(group, second)) is not None]
    return min(quotas, default=None)


def _quota_of(group: Path, second: bool) -> float | None:
    files = ("cpu.max",) if second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = " ".join(_text(group / file) for file in files).split()
    quota, period = (_number(word) for word in words) if len(words) == 2 else (0, 0)
    return quota / period if quota > 0 and period > 0 else None


def _cpu_list(text: str) -> set[int]:
    """{0, 1, 2, 5} of "0-2,5"."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {cpu for first, last in spans for cpu in range(int(first), int(last or first) + 1)}


def _number(text: str) -> float:
    """The number, 0 for "max" and everything else."""
    return float(text) if re.fullmatch(r"-?\d+", text.strip()) else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _sysctl(name: str) -> int:
    """A number that macOS knows; 0 where it does not."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return int(value.value)
