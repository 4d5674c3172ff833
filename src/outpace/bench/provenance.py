"""What a figure depends on besides the code's input: machine, versions, models, command, commit."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..catalogue import cache_dir
from ..control.pass_costs import cpu_name
from ..kernels.native import available
from ..runtimes.loading import LoadedModel
from .compare import versions

PACKAGE = Path(__file__).parents[1]


def provenance(models: Sequence[LoadedModel], command: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything that a reader needs to measure again. ``command``: by default this process's own."""
    commit, changed = git_state()
    words = list(sys.argv if command is None else command)
    if words and Path(words[0]).name == "__main__.py":  # python -m outpace
        words[0] = "outpace"
    return {
        **versions(getattr(models[0].runtime, "threads", None) if models else None),
        "kernels": next(iter(available()), None),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([Path(words[0]).name, *words[1:]]) if words else "",
        "commit": commit,
        "uncommitted_changes": changed,
        "models": [_model(model) for model in models],
    }


def _model(model: LoadedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "file": model.path.name,
        "sha256": sha256(model.path),
        "weights": model.weights,
        "backend": model.backend,
        "bytes_in_memory": model.nbytes,
    }


def git_state() -> tuple[str | None, bool | None]:
    """The commit of the checkout that this package lies in, and whether it has changes; None outside of one."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=True, timeout=20
    ).stdout.strip()


def sha256(path: Path, memory: Path | None = None) -> str:
    """SHA-256 of a file, or of the names and sums of a directory's weights. Remembered in ``memory`` (beside the
    cache of models) for as long as size and time of change stay the same."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    memory = memory or cache_dir().parent / "sha256.json"
    try:
        known: dict[str, str] = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    sums = []
    for file in files:
        stat = file.stat()
        key = f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
        if key not in known:
            known[key] = _digest(file)
            with contextlib.suppress(OSError):  # it is worked out again then
                write_atomically(memory, json.dumps(known))
        sums.append(known[key])
    if not path.is_dir():
        return sums[0]
    listed = "".join(f"{value}  {file.name}\n" for value, file in zip(sums, files, strict=True))
    return hashlib.sha256(listed.encode()).hexdigest()


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old text or the new one, never a part; a device or a pipe as
    it is. Raises OSError."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def peak_memory() -> int:
    """The most bytes this process has held in memory so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
