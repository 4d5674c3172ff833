"""``outpace audit``: what it prints, its exit status, and that a fault in production code makes it fail."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.shipped import needs_torch

from outpace.audit import Options, enumerated, run_audit, statistical
from outpace.cli import main
from outpace.core.cache import KVCache
from outpace.core.errors import ParameterError
from outpace.core.types import Forward, Key, Proposal, Verdict
from outpace.drafters.draft_model import DraftModel
from outpace.engine.engine import Engine
from outpace.engine.text_state import TextState
from outpace.kernels.native import available
from outpace.runtimes.native import NativeRuntime
from outpace.sampling.random_source import KeyedRandomSource
from outpace.verify import block, match, ratio


@pytest.fixture(autouse=True)
def small_grids(monkeypatch):
    """One chain and one tree, few seeds: what is tested here is the command."""
    kept = ("drawn chain of 2", "siblings drawn with replacement")
    monkeypatch.setattr(enumerated, "SHAPES", [shape for shape in enumerated.SHAPES if shape.name in kept])
    monkeypatch.setattr(enumerated, "_QUICK", 2)
    monkeypatch.setattr(statistical, "_QUICK_SEEDS", 400)


def audit(capsys, *words):
    """Exit status, the lines of the checks, and what --json writes. The verdict stands last."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audit.json"
        status = main(["audit", "--quick", "--json", str(file), *words])
        *lines, blank, verdict = capsys.readouterr().out.splitlines()
        summary = json.loads(file.read_text(encoding="utf-8"))
    passed = sum(check["passed"] for check in summary["checks"])
    assert blank == "" and verdict.startswith(f"{passed} of {len(summary['checks'])} checks passed in ")
    return status, [line for line in lines if not line.startswith("skip ")], summary


def test_sections_on_models_pass_and_are_reported(capsys):
    sections = ("equality", "statistical", "soak")
    status, lines, summary = audit(
        capsys, *(word for name in sections for word in ("--only", name)), "--soak-cases", "3"
    )
    assert status == 0 and summary["passed"] is True
    assert {check["section"] for check in summary["checks"]} == set(sections)
    assert len(lines) == len(summary["checks"]) and all(line.startswith("ok ") for line in lines)
    assert summary["target"]["name"] and summary["draft"]
    assert all(check["passed"] and check["seconds"] >= 0 for check in summary["checks"])


def test_one_section_alone_and_json_alone(capsys):
    assert main(["audit", "--quick", "--only", "exact", "--json", "-"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    summary = json.loads(line)
    assert {check["section"] for check in summary["checks"]} == {"exact"}
    distributions = [
        check["values"]["total_variation"] for check in summary["checks"] if "total_variation" in check["values"]
    ]
    assert distributions and all(value < 1e-9 for distribution in distributions for value in distribution.values())


def test_the_faults_on_purpose_are_seen_by_how_much(capsys):
    _, _, summary = audit(capsys, "--only", "broken")
    found = [check["values"]["total_variation"] for check in summary["checks"] if "total_variation" in check["values"]]
    assert len(found) > 14 and min(found) > 1e-3


@pytest.mark.parametrize(
    "words",
    [["--only", "all"], ["--draft", "tiny-draft"], ["--threads", "0"], ["--soak-case", "-1"], ["--engine", "x"]],
)
def test_impossible_options_are_refused(capsys, words):
    assert main(["audit", "--quick", *words]) == 1
    assert "outpace: error" in capsys.readouterr().err


def test_an_unknown_section_is_refused_by_the_library_too():
    with pytest.raises(ParameterError, match="section"):
        list(run_audit(Options(sections=("all",))))


@needs_torch
def test_a_soak_case_is_described_and_run_alone(capsys):
    status, lines, summary = audit(capsys, "--soak-case", "5", "--seed", "1")
    assert status == 0 and lines[0].startswith("Case(") and "case 5" in lines[1] and summary["passed"]


# ---- faults injected into production code


def broken_keep(self, slot, base, path):
    """Keeps refused drafts: what was written last stays."""
    self._get(slot).length = base + len(path)


def dropping(self, sessions, budgets, propose=DraftModel.propose):
    """Submits the first drawn token only when its id is even."""
    return [p if not p.tokens or p.tokens[0] % 2 == 0 else Proposal() for p in propose(self, sessions, budgets)]


def one_use(self, key, uniform=KeyedRandomSource.uniform):
    return uniform(self, Key(key.base, key.node, "draft"))


def rows_shift_logits(self, chunks, cache, want=(), forward=NativeRuntime.forward):
    found = forward(self, chunks, cache, want)
    shift = 1e-4 * sum(len(chunk.tokens) for chunk in chunks)
    return Forward([logits + shift * np.arange(logits.shape[-1]) for logits in found.logits], found.features)


def first_noise(proposal, distributions, rng, base):
    """Every token of a round drawn with the noise of its first position."""
    stale = type(
        "Stale", (), {"gumbel_argmax": lambda self, position, distribution: rng.gumbel_argmax(base, distribution)}
    )
    return match_verify(proposal, distributions, stale(), base)


match_verify = match.verify


def all_accepted(proposal, distributions, rng, base):
    token = rng.categorical(Key(base, len(proposal) - 1, "next"), distributions[len(proposal)])
    return Verdict(list(range(len(proposal))), token, "bonus")


_session = Engine._open


def longer_limit(self, *args, **kwargs):
    answer = _session(self, *args, **kwargs)
    request = answer.session.request
    answer.session.request = replace(request, limit=request.limit + 1)
    return answer


needs_kernels = pytest.mark.skipif(not available(), reason="the C kernels are not built")
FAULTS = {
    "ratio resamples from the target": (ratio, "residual", lambda target, draft: target, "exact"),
    "block forgets the weight": (block, "residual", lambda p, q, w, right=block.residual: right(p, q, 1.0), "exact"),
    "ratio accepts everything": (ratio, "verify", all_accepted, "exact"),
    "match with stale noise": (match, "verify", first_noise, "exact"),
    "the drafter drops drawn tokens": (DraftModel, "propose", dropping, "exact"),
    "the cache keeps the wrong nodes": (KVCache, "keep", broken_keep, "exact"),
    "one random draw draws and accepts": (KeyedRandomSource, "uniform", one_use, "statistical"),
    "a row's bits depend on its neighbours": pytest.param(
        NativeRuntime, "forward", rows_shift_logits, "equality", marks=needs_kernels
    ),
    "stop strings are not seen": (TextState, "_find_stop", lambda self, new: False, "soak"),
    "answers are one token too long": (Engine, "_open", longer_limit, "soak"),
}


@pytest.mark.parametrize(("owner", "name", "fault", "section"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_production_fails_the_audit(capsys, monkeypatch, owner, name, fault, section):
    monkeypatch.setattr(owner, name, fault)
    status, lines, summary = audit(capsys, "--only", section, "--soak-cases", "12")
    assert status == 1 and summary["passed"] is False
    failed = [check for check in summary["checks"] if not check["passed"]]
    assert failed and {check["section"] for check in failed} == {section}
    assert sum(line.startswith("FAIL") for line in lines) == len(failed)


def test_a_failing_soak_case_prints_the_command_that_shows_it_again(capsys, monkeypatch):
    monkeypatch.setattr(Engine, "_open", longer_limit)
    _, lines, _ = audit(capsys, "--only", "soak", "--soak-cases", "12", "--seed", "3")
    told = next(line for line in lines if "reproduce: " in line)
    command = told.split("reproduce: outpace ")[1].split()
    assert main(command) == 1
    assert "FAIL" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(command) == 0


def test_a_section_that_raises_is_a_failure(capsys, monkeypatch):
    def fails(self, sessions):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("outpace.engine.loop.Loop.round", fails)
    status, lines, _ = audit(capsys, "--only", "exact")
    assert status == 1 and "RuntimeError: out of memory" in lines[-1]
