"""What a process may still use after it was forked: a child holds the parent's memory, but none of its other threads.

libgomp keeps the threads of a pool for the thread that made it; a child that enters a parallel region with such a pool
waits for them for ever. So the forking thread gives its pool back first (``omp_pause_resource_all``, OpenMP 5.0,
section 3.2), and both processes make a new one when they need it. LLVM's and Intel's look after forks themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from .errors import ForkError

_REMEDY = "load the model in the child, or start processes with spawn (multiprocessing.get_context('spawn'))"
_SOFT = 1  # omp_pause_soft


class _Process:
    """The process in which OpenMP can be used: this one, or the parent where its threads could not be given back."""

    def __init__(self) -> None:
        self.pid, self.released = os.getpid(), False

    def before_fork(self) -> None:
        # Not where a fork went unseen, as one of a C library: its pools would be waited for, too.
        self.released = os.getpid() == self.pid and _release_pools()

    def in_child(self) -> None:
        if self.released:
            self.pid = os.getpid()


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_process.before_fork, after_in_child=_process.in_child)


def _release_pools() -> bool:
    """Gives back the calling thread's pool in every libgomp of this process; whether that worked."""
    paths = set()
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if "libgomp" in line}
    for path in paths:
        try:
            if ctypes.CDLL(path, mode=os.RTLD_NOLOAD).omp_pause_resource_all(_SOFT):
                return False
        except (OSError, AttributeError):  # GCC's before 9
            return False
    return True


def check_process() -> None:
    """Raise ForkError in a child whose OpenMP would wait for the parent's threads for ever."""
    if os.getpid() != _process.pid:
        raise ForkError(f"this process was forked by one whose OpenMP threads it cannot replace: {_REMEDY}, "
                        "before the parent computes anything")  # fmt: skip


class ProcessLock:
    """A reentrant lock that knows its process. In a forked child it is taken over, with what it guards, when nobody
    held it at the fork and ``busy`` says that nothing was under way; else entering it raises ForkError at once."""

    def __init__(self, what: str, busy: Callable[[], bool] = lambda: False) -> None:
        self._what, self._busy, self._pid, self._lock = what, busy, os.getpid(), threading.RLock()

    def check(self) -> None:
        """Raise ForkError unless this process may use what the lock guards."""
        if os.getpid() == self._pid:
            return
        check_process()
        free = self._lock.acquire(blocking=False)  # a thread that the child does not have never lets go of it
        if not free or self._busy():
            if free:
                self._lock.release()
            raise ForkError(f"{self._what} was at work when the process forked, and cannot be used here: {_REMEDY}")
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        self.check()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
