"""Files that a command writes at its end: whether they can be is seen before anything is measured."""

from __future__ import annotations

import tempfile
from pathlib import Path


def check_output(option: str, file: str | Path | None) -> None:
    """Raise ParameterError, naming the option, where ``file`` could not be written. None is no file."""
    from ..core.errors import ParameterError

    if file is None:
        return
    path = Path(file)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return  # a device or a pipe
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        if not path.parent.exists():
            raise FileNotFoundError(f"there is no directory {path.parent}")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ParameterError(f"{option}: {file} cannot be written: {error.strerror or error}") from None


def write_output(option: str, file: str | Path, text: str) -> None:
    """Write a file whole or not at all. Where that fails, print the text, so that nothing measured is lost, and raise
    ParameterError."""
    from ..bench.provenance import write_atomically
    from ..core.errors import ParameterError

    try:
        write_atomically(Path(file), text)
    except OSError as error:
        print(text)
        reason = error.strerror or error
        raise ParameterError(
            f"{option}: {file} cannot be written any more: {reason}; what it would hold is on standard output"
        ) from None
