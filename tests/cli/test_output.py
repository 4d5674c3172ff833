"""Files that commands write: refused before anything is measured, and printed when they cannot be written after all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from outpace import cli
from outpace.commands import _output
from outpace.commands._output import check_output, write_output
from outpace.core.errors import ParameterError

BENCH = ["bench", "--target", "tiny", "--draft", "tiny-draft", "--threads", "1", "--quiet"]
COMMANDS = {
    "bench --json": [*BENCH, "--json"],
    "bench --html": [*BENCH, "--html"],
    "bench --markdown": [*BENCH, "--markdown"],
    "tune --save": ["tune", "--target", "tiny", "--threads", "1", "--save"],
    "audit --json": ["audit", "--quick", "--json"],
}
# Root may write anywhere, so permissions alone would prove nothing here.
PLACES = {
    "below a file": "file/out.json",
    "in no folder": "missing/out.json",
    "a folder": "folder",
    "in /proc": "/proc/out.json",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_places_that_cannot_be_written_are_refused_before_a_model_is_loaded(
    command: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outpace.runtimes.loading.load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    monkeypatch.setattr("outpace.audit.run.run_audit", lambda options: pytest.fail("it was audited"))
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    assert cli.main([*COMMANDS[command], str(tmp_path / place)]) == 1
    told = capsys.readouterr()
    [line] = told.err.splitlines()
    assert line.startswith(f"outpace: error: {command.split()[1]}: ") and "cannot be written" in line
    assert told.out == ""


def test_what_can_no_longer_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParameterError, match="--json: .*standard output"):
        write_output("--json", tmp_path / "file" / "out.json", '{"all": "kept"}')
    assert json.loads(capsys.readouterr().out) == {"all": "kept"}


def test_a_bench_whose_folder_vanishes_prints_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("outpace.bench.provenance.write_atomically", full)
    monkeypatch.setattr("outpace.bench.measure.write_atomically", full)
    options = ["--category", "chat", "--limit", "1", "--temperature", "0", "--drafter", "lookup", "--max-tokens", "8"]
    assert cli.main([*BENCH[:3], "--threads", "1", "--quiet", *options, "--json", str(tmp_path / "runs.json")]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out.splitlines()[-1])["complete"] is True
    assert told.err.splitlines()[-1].startswith("outpace: error: --json: ") and "No space left" in told.err


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")

    def fails(self: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(ParameterError):
        write_output("--json", file, "new")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_devices_are_written_as_they_are() -> None:
    check_output("--json", os.devnull)
    write_output("--json", os.devnull, "text")
    assert not Path(os.devnull).is_file()
    assert _output.check_output("--json", None) is None
