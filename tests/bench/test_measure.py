"""Measuring the tiny pair, contenders that fail, and interruptions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outpace import LoadOptions
from outpace.bench import session, workload
from outpace.bench.contenders import MODES, Run, modes
from outpace.bench.measure import Measurement, measure_tasks, tasks
from outpace.bench.probe import Bandwidth
from outpace.bench.report import html_report
from outpace.bench.summary import EVERYTHING, rows
from outpace.bench.tables import facts, page, summary_table
from outpace.catalogue import resolve
from outpace.core.errors import ParameterError, PeerError
from outpace.runtimes.loading import load_draft, load_model

PROMPTS = [workload.Prompt("a", "code", "def main("), workload.Prompt("b", "chat", "The cat sat on the mat. The cat")]


@dataclass
class Fake:
    """Answers 10 tokens in a second, or raises what it is told to after some answers."""

    name: str
    error: BaseException | None = None
    after: int = 0
    asked: list[int] = field(default_factory=list)

    def run(self, prompt: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run:
        self.asked.append(prompt[0])
        if self.error is not None and len(self.asked) > self.after:
            raise self.error
        return Run([1] * 11, 1, 0.5, 1.5)


def small_bandwidth() -> Bandwidth:
    return Bandwidth(1 << 16)


def pairs(count: int) -> list[tuple[workload.Prompt, list[int]]]:
    return [(workload.Prompt(str(i), "abc"[i % 3], "x"), [i]) for i in range(count)]


def empty() -> Measurement:
    return Measurement({"command": "c"}, {})


def plan(**changes: object) -> session.Experiment:
    model, draft = load_model(resolve("tiny"), threads=1), load_draft(resolve("tiny-draft"), threads=1)
    found = {"target": model, "draft": draft, "drafters": ["draft_model", "lookup"], "gammas": [3],
             "options": LoadOptions(), "prompts": PROMPTS,
             "temperatures": [0.0, 1.0], "max_tokens": 24, "repeats": 1, "threads": 1}  # fmt: skip
    return session.Experiment(**(found | changes))  # type: ignore[arg-type]


def test_categories_take_turns_so_that_the_first_tasks_cover_all() -> None:
    found = tasks(pairs(6), [0.0], 2)
    assert [t.prompt.category for t in found[:3]] == ["a", "b", "c"]
    assert len(found) == 12 and [t.repeat for t in found] == [0] * 6 + [1] * 6


def test_contenders_take_turns_in_going_first() -> None:
    order: list[str] = []
    fakes = [Fake("plain"), Fake("x"), Fake("y")]
    measure_tasks(empty(), fakes, tasks(pairs(3), [0.0], 1), max_tokens=4, save=None, bandwidth=small_bandwidth(),
            progress=lambda line: order.append(line.split(" ")[3].rstrip(":")))  # fmt: skip
    assert order == ["plain", "x", "y", "x", "y", "plain", "y", "plain", "x"]


def test_a_contender_that_fails_is_named_and_the_others_go_on() -> None:
    found, broken = empty(), Fake("broken", PeerError("broken: out of memory"), after=1)
    measure_tasks(found, [Fake("plain"), broken], tasks(pairs(4), [0.0], 1), max_tokens=4, save=None,
            bandwidth=small_bandwidth())  # fmt: skip
    assert found.failures == [{"what": "broken", "why": "broken: out of memory"}]
    assert [run["contender"] for run in found.runs].count("plain") == 4
    assert len(broken.asked) == 2


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    file, found = tmp_path / "runs.json", empty()
    stopping = Fake("x", KeyboardInterrupt(), after=1)
    with pytest.raises(KeyboardInterrupt):
        measure_tasks(found, [Fake("plain"), stopping], tasks(pairs(3), [0.0], 1), max_tokens=4, save=file,
                bandwidth=small_bandwidth())  # fmt: skip
    kept = Measurement.from_json(file.read_text(encoding="utf-8"))
    assert [run["contender"] for run in kept.runs] == ["plain", "x"]  # the second task began with the one that stopped
    assert not kept.complete


def test_a_whole_session_of_the_tiny_pair(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    found = session.run_experiment(plan(), file, lambda line: None)
    assert found.complete and not found.failures
    assert {run["contender"] for run in found.runs} == {"plain", "draft_model 3", "lookup 3"}
    assert all(run["same_as_plain"] for run in found.runs if run["contender"] != "plain")
    for run in found.runs:
        assert len(run["origins"]) == len(run["tokens"]) == run["report"]["emitted"] == run["steps"][-1][1]
    assert set(found.costs) == {"target", "draft"} and len(found.provenance["models"][0]["sha256"]) == 64
    read = Measurement.from_json(found.as_json())
    assert len(Measurement.from_json(file.read_text(encoding="utf-8")).runs) == len(read.runs)
    assert summary_table(read) == summary_table(found)
    every = [row for row in rows(found) if row.category == EVERYTHING and row.contender == "draft_model 3"]
    assert len(every) == 2 and all(row.alpha and row.ours and row.gain for row in every)
    assert "".join(found.sample["pieces"]) and len(found.sample["pieces"]) == len(found.sample["origins"])
    html = html_report(found)
    assert html.count("<svg") == html.count("</svg>") == 6
    assert "http" not in html.replace("http://www.w3.org", "") and "<script" not in html
    assert page(found).count("\n| ") == len(summary_table(found))


def test_prompts_beyond_the_context_are_reported_and_peers_by_their_own_error() -> None:
    long = workload.Prompt("endless", "long", "word " * 5000)
    found = session.run_experiment(plan(prompts=[PROMPTS[0], long], temperatures=[0.0], drafters=["lookup"], draft=None,
                             peers=["llama_cpp"], peers_folder=Path("nowhere")), None, lambda line: None)  # fmt: skip
    told = {failure["what"]: failure["why"] for failure in found.failures}
    assert "context ends at 1024" in told["endless"]
    assert "make peers" in told["llama_cpp plain (tuning)"]
    assert {run["prompt"] for run in found.runs} == {"a"}


def test_modes_of_peers() -> None:
    for name in MODES:
        assert modes(name, draft=False)[0].settings["mode"] == "plain"
        assert all(mode.settings["mode"] != "draft" for mode in modes(name, draft=False))
        assert any(mode.settings["mode"] == "draft" for mode in modes(name, draft=True))
    with pytest.raises(ParameterError, match="llama_cpp"):
        modes("unknown", draft=True)


def test_an_interrupted_report_says_so() -> None:
    found = session.run_experiment(plan(temperatures=[0.0], prompts=PROMPTS[:1]), None, lambda line: None)
    found.complete = False
    assert "Interrupted" in html_report(found) and facts(found)[-1].startswith("interrupted")
    assert json.loads(found.as_json())["kind"] == "outpace-bench"
