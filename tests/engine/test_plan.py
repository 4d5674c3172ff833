"""Plans: written, read, refused, and followed by commands."""

from __future__ import annotations

import argparse
import json

import pytest

from outpace import cli
from outpace.commands._models import add_model_arguments, options_from
from outpace.core.errors import ParameterError
from outpace.core.load_options import LoadOptions
from outpace.engine.plan import Plan, read_plan

CHOSEN = LoadOptions(
    drafter="draft_model,lookup", threads=1, prior={"lookup": 0.4}, drafter_options={"lookup": {"min_match": 2}}
)
PLAN = Plan("tiny", "tiny-draft", CHOSEN)


def options(*words):
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def file(tmp_path):
    place = tmp_path / "plan.json"
    place.write_text(PLAN.as_json(), encoding="utf-8")
    return place


def test_a_plan_survives_being_written(file):
    assert read_plan(file) == PLAN


def test_a_plan_says_only_what_it_decides():
    assert json.loads(PLAN.as_json())["options"] == {
        "drafter": ["draft_model", "lookup"], "threads": 1, "prior": {"lookup": 0.4},
        "drafter_options": {"lookup": {"min_match": 2}},
    }  # fmt: skip
    assert json.loads(Plan("x").as_json())["options"] == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no plan"),
        ("[]", "no object"),
        ('{"draft": "x"}', "names no target"),
        ('{"target": "x", "speed": 3}', "speed"),
        ('{"target": "x", "options": [3]}', "no object"),
        ('{"target": "x", "options": {"gama": 3}}', "did you mean 'gamma'"),
        ('{"target": "x", "options": {"gamma": -3}}', "gamma must be"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, words):
    place = tmp_path / "plan.json"
    place.write_text(text)
    with pytest.raises(ParameterError, match=words) as caught:
        read_plan(place)
    assert str(place) in str(caught.value)


def test_a_missing_plan_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="nowhere"):
        read_plan(tmp_path / "nowhere.json")


def test_options_go_before_the_plan(file):
    target, draft, found = options_from(options("--plan", str(file), "--drafter", "lookup", "--gamma", "3"))
    assert (target, draft) == ("tiny", "tiny-draft")
    assert found == CHOSEN.changed({"drafter": "lookup", "gamma": 3})
    _, _, found = options_from(options("--plan", str(file), "--lookup-min-match", "5", "--lookup-pool", "0"))
    assert found.drafter_options == {"lookup": {"min_match": 5, "pool": 0}}
    _, _, found = options_from(options("--plan", str(file), "--drafter", "draft_model"))
    assert found.drafter_options == {}  # the plan's are lookup's


def test_a_plan_for_another_target_is_refused(file):
    with pytest.raises(ParameterError, match="a plan for tiny, not for other"):
        options_from(options("--plan", str(file), "--target", "other"))


def test_generate_follows_a_plan_and_explains(file, capsys):
    command = ["generate", "def add(a, b):", "--plan", str(file), "--max-tokens", "24", "--ignore-eos", "--explain"]
    assert cli.main(command) == 0
    told = capsys.readouterr()
    assert "24 tokens in" in told.err and "a second)" in told.err
    assert cli.main([*command[:4], "--max-tokens", "24", "--ignore-eos", "--gamma", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].strip() == told.out.strip()
