"""``outpace generate`` on the shipped tiny pair: options, output, errors, pipes and Ctrl-C."""

import io
import json
import re
import signal
import subprocess
import sys

import pytest
from tests.helpers import tiny_models
from tests.helpers.shipped import needs_torch, shared_engine

from outpace import SamplingParams
from outpace.bench.compare import compare
from outpace.cli import main
from outpace.core.report import Report

CODE = "def read(path):\n    with open(path) as f:\n        return"
TINY = ["generate", "--target", "tiny", "--threads", "1"]
REPORT = set(Report().as_dict())


@pytest.fixture
def run(capsys):
    """Runs the command in this process: its status, standard output and standard error."""

    def call(*arguments):
        status = main([*TINY, *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def answer(run):
    """The object that --json prints."""

    def call(*arguments):
        status, out, err = run("--json", *arguments)
        assert (status, err, out.count("\n")) == (0, "", 1)
        return json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))

    return call


def said(prompt=CODE, **controls):
    return shared_engine("none").generate(prompt, SamplingParams(**controls))


def chat(text, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]


def test_text_goes_to_stdout_and_the_summary_to_stderr(run):
    status, out, err = run("--raw", CODE, "--max-tokens", "12", "--gamma", "2")
    expected = said(max_tokens=12)
    assert (status, out) == (0, expected.text + "\n")
    assert err.count("\n") == 1 and "12 tokens in" in err and "drafts agree" in err and "finish length" in err
    assert run("--raw", CODE, "--max-tokens", "12", "--quiet") == (0, expected.text + "\n", "")


def test_json(answer):
    found = answer("--raw", CODE, "--max-tokens", "12", "--controller", "fixed")
    expected = said(max_tokens=12)
    assert set(found) == {"text", "token_ids", "finish_reason", "prompt_tokens", "report"}
    assert (found["text"], found["token_ids"]) == (expected.text, expected.token_ids)
    assert (found["finish_reason"], found["prompt_tokens"]) == ("length", expected.prompt_tokens)
    report = found["report"]
    assert set(report) == REPORT
    assert (report["drafter"], report["rule"], report["gamma"]) == ("draft_model", "match", 4)
    assert report["emitted"] == 12 and report["alpha"] == report["accepted"] / report["tested"]


@pytest.mark.parametrize(
    ("options", "controls"),
    [
        (["--temperature", "1", "--seed", "5"], {"temperature": 1.0, "seed": 5}),
        (["--temperature", "1", "--seed", "5", "--top-k", "3"], {"temperature": 1.0, "seed": 5, "top_k": 3}),
        (["--temperature", "1", "--seed", "5", "--top-p", "0.3"], {"temperature": 1.0, "seed": 5, "top_p": 0.3}),
        (["--temperature", "1", "--seed", "5", "--min-p", "0.4"], {"temperature": 1.0, "seed": 5, "min_p": 0.4}),
        (["--stop", "f.", "--stop", "("], {"stop": ["f.", "("]}),
        (["--ignore-eos"], {"ignore_eos": True}),
        (["--gamma", "0"], {}),
        (["--gamma", "9"], {}),
        (["--drafter", "none"], {}),
        (["--drafter", "lookup"], {}),
        (["--drafter", "lookup", "--lookup-min-match", "1"], {}),
        (["--drafter", "draft_model", "--draft", "tiny-draft"], {}),
        (["--draft", "tiny", "--controller", "fixed"], {}),
        (["--accept", "ratio"], {}),
        (["--weights", "f32", "--draft-weights", "bf16"], {}),
        pytest.param(["--backend", "torch"], {}, marks=needs_torch),
        (["--context", "30"], {}),
    ],
)
def test_options(answer, options, controls):
    """Each does what its field of the library does; none of the drafting options changes a token."""
    found = answer("--raw", CODE, "--max-tokens", "16", *options)
    expected = said(max_tokens=16, **controls)
    count = 30 - expected.prompt_tokens if "--context" in options else 16
    assert found["token_ids"] == expected.token_ids[:count]
    report, value = found["report"], dict(zip(options[::2], options[1::2], strict=False))
    assert report["seed"] == int(value.get("--seed", report["seed"]))
    assert report["rule"] == value.get("--accept", "match")
    if "--gamma" in value:
        assert report["gamma"] == int(value["--gamma"])
        assert report["drafted"] <= report["gamma"] * report["target_passes"]
        assert report["drafter"] == ("none" if report["gamma"] == 0 else "draft_model")
    else:
        assert report["drafter"] == value.get("--drafter", "draft_model")
    if value.get("--draft") == "tiny":
        assert report["alpha"] == 1.0


def test_chat_template_system_message_and_raw(answer):
    for options, prompt in [
        ([], chat("hello")),
        (["--system", "be brief"], chat("hello", "be brief")),
        (["--raw"], "hello"),
    ]:
        found = answer("hello", "--max-tokens", "8", *options)
        expected = said(prompt, max_tokens=8)
        assert (found["token_ids"], found["prompt_tokens"]) == (expected.token_ids, expected.prompt_tokens)


@pytest.mark.parametrize("arguments", [["-"], []])
def test_prompt_from_standard_input(answer, arguments, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(CODE))
    assert answer("--raw", "--max-tokens", "8", *arguments)["token_ids"] == said(max_tokens=8).token_ids


# ---- comparing


def test_compare_json(answer):
    options = ("--compare", "--repeat", "2", "--temperature", "1", "--gamma", "4")
    found = answer("--raw", CODE, "--max-tokens", "12", *options)
    assert {"plain", "speculative", "speedup", "tokens_equal"} <= set(found)
    assert set(found["plain"]) == set(found["speculative"]) == REPORT
    assert found["tokens_equal"] is True and found["first_difference"] is None
    assert (found["plain"]["drafter"], found["plain"]["drafted"]) == ("none", 0)
    assert found["speculative"]["drafter"] == "draft_model" and found["speculative"]["drafted"] > 0
    assert found["plain"]["seed"] == found["speculative"]["seed"]  # one is drawn for all runs
    assert len(found["speedup_each"]) == 2
    assert min(found["speedup_each"]) <= found["speedup"] <= max(found["speedup_each"])


def test_compare_in_words(run):
    status, out, err = run("--raw", CODE, "--max-tokens", "12", "--gamma", "2", "--compare", "--repeat", "1")
    assert (status, out) == (0, said(max_tokens=12).text + "\n")
    lines = err.splitlines()
    assert [line.split()[0] for line in lines] == ["plain:", "speculative:", "plain", "speculative", "tokens", "drafts"]
    assert "tok/s   x" in lines[3] and lines[4].endswith("12, equal") and "alpha" in lines[5]


def test_comparing_nothing_is_still_json_and_words(answer, run):
    found = answer("--raw", CODE, "--max-tokens", "0", "--compare")
    assert (found["speedup"], found["speedup_each"], found["tokens_equal"]) == (None, [], True)
    status, _, err = run("--raw", CODE, "--max-tokens", "0", "--compare", "--quiet")
    assert status == 0 and "nan" not in err


def test_comparison_says_where_answers_differ():
    """``ratio`` draws with other random draws than plain decoding: the same distribution, other tokens."""
    found = compare(shared_engine("draft_model", 8, "ratio"), CODE, SamplingParams(temperature=1.0, max_tokens=24))
    a, b = found.plain.token_ids, found.speculative.token_ids
    assert a != b and found.tokens_equal is False
    assert a[: found.first_difference] == b[: found.first_difference]
    assert a[found.first_difference] != b[found.first_difference]


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "tinny"], "did you mean tiny"),
        (["--target", "/nowhere/model.gguf"], "'/nowhere/model.gguf' is neither a file or directory nor a model"),
        (["--draft", "/nowhere/model.gguf"], "'/nowhere/model.gguf' is neither"),
        (["--draft", "tiny-draft", "--drafter", "lookup"], "'lookup' takes no draft model"),
        (["--draft", "tiny-draft", "--drafter", "none"], "'none' takes no draft model"),
        (["--drafter", "draft_model", "--lookup-min-match", "2"], "min_match belongs to the drafter 'lookup'"),
        (["--drafter", "lookup", "--lookup-min-match", "0"], "min_match must be at least 1"),
        (["--temperature", "-1"], "temperature must lie in"),
        (["--temperature", "nan"], "temperature must lie in"),
        (["--top-k", "-1"], "top_k must be at least 0"),
        (["--top-p", "0"], "top_p must lie in"),
        (["--top-p", "1.5"], "top_p must lie in"),
        (["--min-p", "2"], "min_p must lie in"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--max-tokens", "-1"], "max_tokens must be at least 0"),
        (["--stop", ""], "stop must hold non-empty strings"),
        (["--gamma", "-1"], "gamma must be a whole number of at least 0"),
        (["--repeat", "0"], "--repeat must be at least 1"),
        (["--threads", "0"], "threads must be a whole number of at least 1"),
        (["--context", "0"], "context must be a whole number of at least 1"),
        (["--context", "4"], "model's context ends at 4"),
        (["--raw", "--system", "x"], "--system needs a chat template"),
    ],
)
def test_errors_are_one_line_and_status_1(run, arguments, words):
    """B25, B60: also a draft that was asked for and cannot be used."""
    status, out, err = run(CODE, *arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("outpace: error: ") and words in err


@pytest.mark.parametrize("arguments", [["--gamma", "x"], ["--temperature", "hot"], ["--accept", "maybe"], ["--top"]])
def test_arguments_that_are_none_name_the_option(run, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run(CODE, *arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_an_empty_prompt_is_an_error(run):
    status, out, err = run("--raw", "")
    assert (status, out, err.count("\n")) == (1, "", 1) and "prompt is empty" in err


def test_prompts_that_are_not_unicode(run, monkeypatch):
    status, _, err = run("--raw", "half a \udcff")  # how Python shows a stray byte of the command line
    assert status == 1 and "not valid Unicode" in err and err.count("\n") == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    status, _, err = run("-")
    assert status == 1 and "is not utf-8" in err and err.count("\n") == 1


def test_a_draft_of_another_vocabulary_is_refused(run, tmp_path):
    """B24, B25: both sizes and the first id that differs are named."""
    made = []
    for name, family, tokenizer in [
        ("byte", "qwen2", tiny_models.byte_level_tokenizer()),
        ("meta", "llama", tiny_models.metaspace_tokenizer()),
    ]:
        config = tiny_models.tiny_config(family, tokenizer)
        weights = tiny_models.tiny_weights(config)
        made.append(tiny_models.write_directory(tmp_path / name, config, weights, tokenizer))
    status, out, err = run(CODE, "--target", str(made[0]), "--draft", str(made[1]))
    assert (status, out) == (1, "")
    assert "do not share a vocabulary: byte has 320 tokens and meta has" in err and "id 0 is" in err


# ---- processes


def command(*arguments):
    return [sys.executable, "-m", "outpace", *TINY, *arguments]


@needs_torch
def test_ctrl_c_ends_with_what_was_generated():
    process = subprocess.Popen(
        command("--raw", CODE, "--max-tokens", "900", "--ignore-eos", "--gamma", "0", "--backend", "torch"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what a buffer had read ahead would be lost to communicate()
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stdout is not None
    first = b""
    while len(first) < 10:  # it streams: this is here long before the end
        first += process.stdout.read(10 - len(first))
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.count(b"\n") == 1 and b"finish cancelled" in err
    text = (first + rest.removesuffix(b"\n")).decode()
    whole = said(max_tokens=900, ignore_eos=True).text
    assert whole.startswith(text) and 10 <= len(text) < len(whole)


def test_ctrl_c_while_reading_the_prompt(run, monkeypatch):
    class Terminal:
        def read(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert run("-") == (130, "", "outpace: interrupted\n")


@needs_torch
def test_a_reader_that_has_seen_enough():
    """As with ``| head -c 10``: no traceback."""
    process = subprocess.Popen(
        command("--raw", CODE, "--max-tokens", "400", "--ignore-eos", "--backend", "torch"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=120) == 1


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def test_show_colours_each_token_by_its_origin(run):
    options = ("--raw", CODE, "--max-tokens", "24", "--quiet")
    _, plain_text, _ = run(*options)
    status, out, err = run(*options, "--show", "--color", "always", "--controller", "fixed")
    assert status == 0 and COLOUR.sub("", out) == plain_text
    assert out.count("\x1b[32m") > 5 and out.count("\x1b[33") > 2  # drafts that stood, and the target's own tokens
    assert "draft model" in err and "correction" in err
    _, by_lookup, _ = run(*options, "--show", "--color", "always", "--drafter", "lookup", "--gamma", "0")
    assert by_lookup == plain_text  # nothing was drafted


def test_show_is_plain_where_nobody_sees_colours(run):
    options = ("--raw", CODE, "--max-tokens", "12", "--quiet")
    expected = run(*options)
    assert run(*options, "--show") == expected  # standard output is no terminal here
    assert run(*options, "--show", "--color", "never") == expected
    assert COLOUR.search(run(*options, "--show", "--color", "always", "--json")[1]) is None
