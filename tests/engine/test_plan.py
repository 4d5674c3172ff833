"""Plans: written, read, refused, and followed by commands."""

from __future__ import annotations

import argparse
import json

import pytest

from outpace import cli
from outpace.commands._models import add_model_arguments, follow_plan
from outpace.core.errors import ParameterError
from outpace.engine.plan import Plan, read_plan

PLAN = Plan("tiny", draft="tiny-draft", drafter="draft_model,lookup", threads=1, prior={"lookup": 0.4})


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


def test_a_plan_sets_only_what_it_decides():
    assert PLAN.arguments() == {"target": "tiny", "draft": "tiny-draft", "drafter": "draft_model,lookup", "threads": 1,
                                "prior": {"lookup": 0.4}}  # fmt: skip
    assert Plan("x", gamma=0, controller="fixed").arguments() == {"target": "x", "gamma": 0, "controller": "fixed"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no plan"),
        ("[]", "no object"),
        ('{"draft": "x"}', "names no target"),
        ('{"target": "x", "speed": 3}', "speed"),
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
    args = options("--plan", str(file), "--drafter", "lookup", "--gamma", "3")
    assert follow_plan(args) == {"lookup": 0.4}
    assert (args.target, args.draft, args.drafter) == ("tiny", "tiny-draft", "lookup")
    assert (args.gamma, args.threads, args.controller) == (3, 1, "auto")


def test_a_plan_for_another_target_is_refused(file):
    with pytest.raises(ParameterError, match="a plan for tiny, not for other"):
        follow_plan(options("--plan", str(file), "--target", "other"))


def test_generate_follows_a_plan_and_explains(file, capsys):
    command = ["generate", "def add(a, b):", "--plan", str(file), "--max-tokens", "24", "--ignore-eos", "--explain"]
    assert cli.main(command) == 0
    told = capsys.readouterr()
    assert "24 tokens in" in told.err and "a second)" in told.err
    assert cli.main([*command[:4], "--max-tokens", "24", "--ignore-eos", "--gamma", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].strip() == told.out.strip()
