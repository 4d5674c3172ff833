"""LoadOptions: declared once, checked once, and each drafter and rule gets its own options."""

import json
import shutil
from pathlib import Path

import pytest
from tests.helpers.shipped import model

from outpace import LoadOptions, SamplingParams, cli, load
from outpace.core.errors import ParameterError
from outpace.drafters.common.heads import SHIPPED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gama": 3}, "did you mean 'gamma'"),
        ({"speed": 3}, "no load option 'speed'; they are"),
        ({"gamma": -1}, "gamma must be a whole number of at least 0"),
        ({"gamma": True}, "gamma must be"),
        ({"max_batch": 0}, "max_batch must be a whole number of at least 1"),
        ({"max_batch": None}, "max_batch must be"),
        ({"threads": 0}, "threads must be"),
        ({"weights": "q3"}, "weights must be one of auto, file"),
        ({"controller": "never"}, "controller must be one of auto, fixed"),
        ({"drafter": "lookup,,none"}, "drafter must name"),
        ({"drafter": ["lookup", "lookup"]}, "drafter must name"),
        (
            {"drafter": "lookup", "drafter_options": {"medusa": {"heads": "x"}}},
            "heads belongs to the drafter 'medusa', but lookup is used",
        ),
        ({"drafter": "lookup", "drafter_options": {"lookup": {"minimum": 2}}}, "no option 'minimum'"),
        ({"drafter": "lookup", "drafter_options": {"lookup": {"min_match": "2"}}}, "type int for 'min_match'"),
        ({"rule_options": {"match": {"epsilon": 0.1}}}, "'match' has no options"),
        ({"rule_options": {"typical": {"epsilon": "x"}}}, "type float for 'epsilon'"),
        ({"options": {"lookup": {"min_match": 2}}}, "a drafter's own are drafter_options"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, words):
    with pytest.raises(ParameterError, match=words):
        load(model(), **changes)


def test_changes_replace_what_the_options_say():
    engine = load(model(), options=LoadOptions(drafter="lookup,recycle", gamma=2, max_batch=3), gamma=5)
    assert engine.drafters == ["lookup", "recycle"] and engine.gamma == 5


def test_settings_survive_json():
    some = LoadOptions(
        drafter=["eagle", "medusa"], gamma=0, prior={"eagle": 0.5}, rule_options={"typical": {"delta": 0.2}}
    )
    assert LoadOptions().changed(json.loads(json.dumps(some.as_dict()))) == some
    assert LoadOptions().as_dict() == {}


@pytest.fixture
def heads(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("torch")
    return {name: str(shutil.copytree(SHIPPED / name, tmp_path / f"of {name}")) for name in ("eagle", "medusa")}


def test_two_drafters_each_get_their_own_heads(heads, capsys):
    """Of the command line, and of Python: EAGLE's and Medusa's heads lie in folders of their own."""
    flags = ["--eagle-heads", heads["eagle"], "--medusa-heads", heads["medusa"]]
    command = ["generate", "def f(", "--target", "tiny", "--max-tokens", "8", "--json"]
    assert cli.main([*command, "--drafter", "eagle,medusa", *flags]) == 0
    alone = json.loads(capsys.readouterr().out)["text"]
    engine = load(model(), drafter="eagle,medusa", gamma=3, drafter_options={n: {"heads": p} for n, p in heads.items()})
    for name in heads:
        result = engine.generate("def f(", drafter=name)
        assert result.report.drafted and not result.report.warnings
    assert alone
    swapped = {"eagle": {"heads": heads["medusa"]}, "medusa": {"heads": heads["eagle"]}}
    with pytest.raises(Exception, match="of medusa"):
        load(model(), drafter="eagle,medusa", drafter_options=swapped)


def test_a_plan_and_the_bench_carry_drafter_options(heads, tmp_path, capsys):
    """Medusa with heads that lie elsewhere: saved by tune, followed by bench."""
    plan = tmp_path / "plan.json"
    tune = ["tune", "--target", "tiny", "--drafter", "medusa", "--medusa-heads", heads["medusa"], "--tokens", "6",
            "--repeat", "1", "--threads", "1", "--save", str(plan)]  # fmt: skip
    assert cli.main(tune) == 0
    stored = json.loads(plan.read_text())
    assert [row["way"] for row in stored["measured"]] == ["medusa"]
    plan.write_text(json.dumps({"target": "tiny", "options": {"drafter": ["medusa"], "gamma": 2, "drafter_options": {
        "medusa": {"heads": heads["medusa"]}}}}))  # fmt: skip
    found = tmp_path / "found.json"
    bench = ["bench", "--plan", str(plan), "--limit", "1", "--category", "code", "--temperature", "0", "--max-tokens",
             "6", "--quiet", "--json", str(found)]  # fmt: skip
    assert cli.main(bench) == 0
    runs = json.loads(found.read_text())
    flags = [*(word for name in heads for word in (f"--{name}-heads", heads[name])), "--drafter", ",".join(heads)]
    assert cli.main(["bench", "--target", "tiny", *flags, "--gamma", "2", *bench[3:]]) == 0
    assert runs["settings"]["options"]["drafter_options"]["medusa"]["heads"] == heads["medusa"]
    assert any(run["report"]["drafter"] == "medusa" and run["report"]["drafted"] for run in runs["runs"])


def test_a_hybrid_without_a_draft_model(capsys):
    command = ["generate", "def f(", "--target", "tiny", "--drafter", "hybrid", "--hybrid-members", "recycle,lookup",
               "--lookup-min-match", "1", "--gamma", "4", "--max-tokens", "20", "--json"]  # fmt: skip
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["report"]["drafted"] > 0


def test_a_rule_takes_options_for_one_request():
    """The lower the threshold of typical acceptance, the more is accepted."""
    engine = load(model(), model("tiny-draft"), gamma=3, accept="typical")
    params = SamplingParams(temperature=1.5, seed=1, max_tokens=60, ignore_eos=True)
    strict = engine.generate("def f(", params, rule_options={"epsilon": 1.0, "delta": 1.0})
    loose = engine.generate("def f(", params, rule_options={"epsilon": 1e-9, "delta": 1e-9})
    assert (strict.report.alpha or 0) < 1 and loose.report.alpha == 1.0
    with pytest.raises(ParameterError, match="no option 'eps'"):
        engine.generate("def f(", rule_options={"eps": 1.0})
