"""What a model writes on a terminal and in a pipe; prompts and consoles of any encoding."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tests.helpers.shipped import model, shared_engine

from outpace import SamplingParams, demo
from outpace.cli import main
from outpace.commands._terminal import harmless

TINY = ["--target", "tiny", "--threads", "1", "--gamma", "0"]
GENERATE = ["generate", *TINY, "--raw", "--max-tokens", "3"]
CODES = ["\x1b", "\x07", "\x08", "\r", "\x7f", "\x00"]


def forced(text: str) -> list[str]:
    """Options that make the tiny model write this byte again and again."""
    (token,) = model().tokenizer.encode(text, add_special=False)
    return ["--logit-bias", f"{token}=100"]


@pytest.fixture
def at_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)  # pytest makes another one for each phase


@pytest.mark.parametrize("options", [["--quiet"], ["--show", "--color", "never"], ["--compare", "--repeat", "1"]])
@pytest.mark.parametrize("code", CODES)
def test_generate_writes_no_codes_on_a_terminal(at_a_terminal, capsys, options, code):
    assert main([*GENERATE, "hi", *options, *forced(code)]) == 0
    assert capsys.readouterr().out == "\ufffd" * 3 + "\n"


def test_colours_are_ours_alone(at_a_terminal, capsys):
    assert main([*GENERATE, "hi", "--show", "--quiet", *forced("\x1b"), "--color", "always"]) == 0
    assert capsys.readouterr().out.replace("\ufffd", "").count("\x1b") == 0  # plain tokens have no colour
    assert main([*GENERATE, "hi", "--show", "--quiet", "--gamma", "4", *forced("\x1b"), "--color", "always"]) == 0
    out = capsys.readouterr().out
    assert out.count("\ufffd") == 3 and "\x1b[" in out and "\x1b\x1b" not in out


@pytest.mark.parametrize("code", CODES)
def test_a_pipe_gets_every_byte(capsys, code):
    assert main([*GENERATE, "hi", "--quiet", *forced(code)]) == 0
    assert capsys.readouterr().out == code * 3 + "\n"


def test_the_demo_writes_no_codes_on_a_terminal(at_a_terminal, capsys, monkeypatch):
    answer = shared_engine("none").generate("hi", SamplingParams(max_tokens=3, logit_bias={_escape(): 100}))
    found = SimpleNamespace(speculative=answer, plain=answer)
    monkeypatch.setattr(demo, "load", lambda *args, **more: None)
    monkeypatch.setattr(demo, "compare", lambda *args, **more: found)
    monkeypatch.setattr(demo, "comparison_table", lambda one: "a table\x1b[2J")
    demo._race(None, None, ("hi",))
    out = capsys.readouterr().out
    assert "\ufffd" * 3 in out and "a table\ufffd[2J" in out and "\x1b" not in out


def _escape() -> int:
    return model().tokenizer.encode("\x1b", add_special=False)[0]


def test_errors_that_tell_of_a_file_write_no_codes(at_a_terminal, capsys):
    assert main(["generate", "--target", "a\x1b]0;title\x07", "hi"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_every_control_character_is_shown():
    codes = "".join(map(chr, (*range(32), *range(127, 160))))
    assert harmless(codes) == "".join(c if c in "\n\t" else "\ufffd" for c in codes)
    assert harmless("é日🙂 ") == "é日🙂 "


# ---- any prompt, any console


@pytest.mark.parametrize("prompt", ["-x = 5", "--target", "-", "--", "-5 apples", "\x00", "\ufeff日", "🙂", " "])
def test_prompts_that_look_like_options(capsys, monkeypatch, prompt):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert main([*GENERATE, "--quiet", "--", prompt]) == 0
    text = "from a pipe" if prompt == "-" else prompt
    assert capsys.readouterr().out == shared_engine("none").generate(text, SamplingParams(max_tokens=3)).text + "\n"


def test_an_unknown_option_tells_of_the_two_dashes(capsys):
    with pytest.raises(SystemExit):
        main([*GENERATE, "-x"])
    assert "goes behind --" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["caf\udce9"], "not valid Unicode"),
        ([""], "prompt is empty"),
        (["hi", "--regex", "\udcff"], "constraint regex cannot be read"),
        (["hi", "--target", "\udcff"], "is neither a file"),
    ],
)
def test_text_that_no_model_can_read_gets_one_line(capsys, options, words):
    assert main([*GENERATE, *options]) == 1
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1


def test_a_chats_texts_that_are_not_unicode(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"/save {tmp_path}/x\n/load a\0b\n".encode())))
    assert main(["chat", *TINY, "--system", "\udcff"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("outpace: error: ") for line in lines)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16", "utf-8"])
def test_consoles_of_any_encoding(monkeypatch, encoding):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding=encoding))
    assert main([*GENERATE, "--max-tokens", "9", "--quiet", "--regex", "日é", "hi"]) == 0
    sys.stdout.flush()
    assert shown.getvalue() == "日é\n".encode(encoding, "backslashreplace")


def test_closed_streams():
    """No traceback; what is said elsewhere is still said."""
    program = f"{sys.executable} -m outpace {' '.join(GENERATE)}"
    found = subprocess.run(f"{program} - <&-", shell=True, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.count("\n")) == (1, 1) and "prompt is empty" in found.stderr
    found = subprocess.run(f"{program} hi >&-", shell=True, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and "3 tokens in" in found.stderr
