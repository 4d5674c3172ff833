"""Use what tests/test_additions.py added to a copy of the package, in a process of its own. Prints, as JSON, what
failed for each kind, "" where nothing did.

Arguments: a model of the added family, the same model as one of Llama's, a folder for a plan.
"""

import contextlib
import functools
import io
import json
import sys
import traceback
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import outpace
from outpace.catalogue import resolve
from outpace.cli import main
from outpace.core.errors import ParameterError
from outpace.engine.engine import Engine
from outpace.engine.plan import Plan, read_plan
from outpace.runtimes.loading import LoadedModel, load_model
from outpace.serve.app import create_app

PROMPT = "def add(a, b):\n    return a"


def generate(*words: str) -> dict:
    """What `outpace generate` prints as JSON."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = main(["generate", PROMPT, "--raw", "--json", "--max-tokens", "16", *words])
    assert status == 0, words
    return json.loads(said.getvalue())


def refused(*words: str) -> str:
    """The error of `outpace generate`."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(["generate", PROMPT, "--raw", *words]) == 1, words
    return said.getvalue()


@functools.cache
def tiny(*words: str) -> dict:
    return generate("--target", "tiny", "--temperature", "1.5", "--seed", "3", *words)


def a_drafter() -> None:
    plain, drafted = tiny("--gamma", "0"), tiny("--gamma", "4", "--drafter", "repeat_last")
    short = tiny("--gamma", "4", "--drafter", "repeat_last", "--repeat-last-most", "1")
    assert drafted["token_ids"] == short["token_ids"] == plain["token_ids"]
    assert drafted["report"]["drafter"] == "repeat_last"
    assert short["report"]["drafted"] <= short["report"]["target_passes"] < drafted["report"]["drafted"]
    engine = tiny_engine(drafter="repeat_last", drafter_options={"repeat_last": {"most": 2}}, gamma=3)
    assert engine.generate(PROMPT, params()).token_ids == plain["token_ids"]


def a_rule() -> None:
    plain = tiny("--gamma", "0")
    draft = ["--draft", "tiny-draft", "--gamma", "4"]
    one, four = (tiny(*draft, "--accept", "at_most", "--at-most-most", most) for most in ("1", "4"))
    assert one["token_ids"] == four["token_ids"] == plain["token_ids"]
    assert 0 < one["report"]["accepted"] <= one["report"]["target_passes"]
    assert four["report"]["target_passes"] < one["report"]["target_passes"]


def a_family(theirs: str, llama: str) -> None:
    found = generate("--target", theirs, "--gamma", "3")
    assert found["token_ids"] == generate("--target", llama, "--gamma", "0")["token_ids"]


def a_sampling_control() -> None:
    plain, cut = (tiny("--gamma", "0", "--top-a", least)["token_ids"] for least in ("0", "0.9"))
    assert cut != plain
    engine = tiny_engine(model(), accept="ratio", gamma=3)
    drafted = engine.generate(PROMPT, params(top_a=0.9))
    # The target drafts for itself: all is accepted only where the control acts on both alike.
    assert drafted.report.tested > 5 and drafted.report.alpha == 1
    alone = engine.generate(PROMPT, params(top_a=0.9), gamma=0, accept="match")
    assert alone.token_ids == cut
    body = {
        "prompt": PROMPT,
        "max_tokens": 16,
        "temperature": 1.5,
        "seed": 3,
        "outpace": {"off": True, "accept": "match"},
    }
    with TestClient(create_app(engine)) as client:
        answers = [client.post("/v1/completions", json=body | more) for more in ({}, {"top_a": 0.9}, {"top_a": 7})]
    assert [answer.status_code for answer in answers] == [200, 200, 400], answers[1].text
    assert answers[1].json()["choices"][0]["text"] == alone.text != answers[0].json()["choices"][0]["text"]


def a_loader_option(folder: str) -> None:
    tiny_engine(least_context=8)
    with pytest.raises(ParameterError, match="least_context"):
        tiny_engine(least_context=10**9)
    assert "least_context" in refused("--target", "tiny", "--least-context", "1000000000")
    options = outpace.LoadOptions(least_context=10**9)
    file = Path(folder) / "plan.json"
    file.write_text(Plan("tiny", options=options).as_json())
    assert json.loads(file.read_text())["options"] == {"least_context": 10**9}
    assert read_plan(file).options == options
    assert "least_context" in refused("--plan", str(file))


@functools.cache
def model() -> LoadedModel:
    return load_model(resolve("tiny"))


def tiny_engine(draft: LoadedModel | None = None, **options: object) -> Engine:
    return outpace.load(model(), draft, controller="fixed", **options)


def params(**more: object) -> outpace.SamplingParams:
    return outpace.SamplingParams(temperature=1.5, seed=3, max_tokens=16, **more)


def failure(use, *arguments: str) -> str:
    try:
        use(*arguments)
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    theirs, llama, folder = sys.argv[1:]
    print(json.dumps({
        "package": str(Path(outpace.__file__).parent),
        "a drafter": failure(a_drafter),
        "an acceptance rule": failure(a_rule),
        "a Llama-shaped family": failure(a_family, theirs, llama),
        "a sampling control": failure(a_sampling_control),
        "a loader option": failure(a_loader_option, folder),
    }))  # fmt: skip
