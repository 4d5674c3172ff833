"""`outpace bench` on the command line."""

import json
from pathlib import Path

import pytest

from outpace import cli

TINY = ["bench", "--target", "tiny", "--draft", "tiny-draft", "--threads", "1", "--max-tokens", "12", "--quiet"]


def test_measures_writes_and_draws_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, html, page = (str(tmp_path / name) for name in ("runs.json", "report.html", "page.md"))
    options = ["--category", "chat", "--limit", "1", "--temperature", "0", "--drafter", "draft_model", "--gamma", "2"]
    assert cli.main([*TINY, *options, "--json", runs, "--html", html]) == 0
    table = capsys.readouterr().out
    assert "draft_model 2" in table and "read bandwidth" in table and "sha256" in table
    assert cli.main(["bench", "--from-json", runs, runs, "--markdown", page]) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[-1].split()[:3] == table.splitlines()[-1].split()[:3]
    assert Path(html).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "| draft_model 2 |" in Path(page).read_text(encoding="utf-8")
    data = json.loads(Path(runs).read_text(encoding="utf-8"))
    assert data["complete"] and data["provenance"]["cores"] and len(data["runs"]) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--category", "nonsense"], "must be among code"),
        (["--gamma", "x"], "--gamma takes numbers"),
        (["--temperature", "-1"], "--temperature must be at least 0"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--repeat", "0"], "--repeat must be at least 1"),
        (["--peers", "nobody"], "--peers knows llama_cpp"),
        (["--prompts", "missing.jsonl"], "cannot be read as prompts"),
        (["--drafter", "nobody"], "nobody"),
        (["--from-json", "missing.json"], "is not what"),
    ],
)
def test_mistakes_are_named(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*TINY, *options]) == 1
    assert told in capsys.readouterr().err


def test_follows_a_plan_of_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        '{"target": "tiny", "draft": "tiny-draft", "options": {"drafter": ["draft_model"], "gamma": 2}}',
        encoding="utf-8",
    )
    flags = ["--category", "chat", "--limit", "1", "--temperature", "0", "--max-tokens", "8", "--threads", "1"]
    assert cli.main(["bench", "--plan", str(plan), *flags, "--quiet"]) == 0
    assert "draft_model 2" in capsys.readouterr().out
    assert cli.main(["bench", "--plan", str(plan), "--target", "other"]) == 1
    assert "a plan for tiny" in capsys.readouterr().err
