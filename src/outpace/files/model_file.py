"""Reading a model's file into memory of our own, never through a mapping.

A mapped file that somebody truncates kills the process (SIGBUS), and one that somebody overwrites changes the model
under a running engine. So every byte is copied once, and a file that changes while it is read is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.errors import ModelError


@dataclass(frozen=True)
class ModelFile:
    """A file as it was when it was first looked at: its path, its size in bytes and what tells another file apart."""

    path: Path
    size: int
    stamp: tuple[int, ...]  # device, inode, size, time of the last change

    @classmethod
    def at(cls, path: Path) -> ModelFile:
        """The file at ``path`` as it is now. Raises ModelError when there is none."""
        try:
            found = path.stat()
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
        return cls(path, found.st_size, _stamp(found))

    def read(self, start: int, count: int) -> np.ndarray:
        """Bytes ``start .. start + count - 1``: uint8 ``[count]``, in memory of its own.

        Raises ModelError when the file is not the one that was first looked at, or cannot be read.
        """
        found = np.empty(count, dtype=np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                got = 0
                while got < count and (more := file.readinto(found[got:].data)):
                    got += more
                # Looked at after reading: what was written before or meanwhile shows in the time of the last change.
                same = _stamp(os.fstat(file.fileno())) == self.stamp
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read ({error.strerror})") from error
        if got < count or not same:
            raise ModelError(f"{self.path}: the file changed while it was loaded; load it again once it is complete")
        return found


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class FileRows:
    """A matrix of bytes inside a file, ``shape`` [rows, bytes per row]; a slice of its rows is read when asked for."""

    file: ModelFile
    start: int
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes that the whole matrix takes in the file."""
        return self.shape[0] * self.shape[1]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """uint8 ``[rows of the slice, bytes per row]``. Raises ModelError as :meth:`ModelFile.read` does."""
        first, stop, _ = rows.indices(self.shape[0])
        count, row_bytes = max(0, stop - first), self.shape[1]
        return self.file.read(self.start + first * row_bytes, count * row_bytes).reshape(count, row_bytes)
