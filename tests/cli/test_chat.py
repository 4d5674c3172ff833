"""``outpace chat`` on the tiny pair: through a pipe, and at a terminal."""

import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from tests.helpers.cut_cases import CUT_CASES
from tests.helpers.shipped import needs_torch, shared_engine

from outpace import SamplingParams
from outpace.cli import main
from outpace.commands._terminal import coloured, cut, harmless, interrupts, read_message

CHAT = ["chat", "--target", "tiny", "--threads", "1"]
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def talk(*contents, system=None):
    """A conversation, the user's and the model's messages in turn."""
    roles = [{"role": "system", "content": system}] if system else []
    return roles + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def said(*contents, system=None, **controls):
    """The answer to a conversation, decoded plainly."""
    return shared_engine("none").generate(talk(*contents, system=system), SamplingParams(**controls)).text


@pytest.fixture
def pipe(monkeypatch, capsys):
    """Runs a chat in this process that reads these lines: its standard output and standard error."""

    def call(*lines, options=(), code=0):
        text = b"".join(line if isinstance(line, bytes) else f"{line}\n".encode() for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        assert main([*CHAT, *options]) == code
        return capsys.readouterr()

    return call


# ---- through a pipe


def test_each_line_is_a_message_and_the_conversation_grows(pipe):
    out, err = pipe("hello", "", "and then?", "/stats", options=["--max-tokens", "12", "--gamma", "2"])
    first = said("hello", max_tokens=12)
    second = said("hello", first, "and then?", max_tokens=12)
    assert out == f"{first}\n{second}\n"
    assert "12 tokens in" in err and "drafts agree" in err
    read, prompt = map(int, re.search(r"(\d+) of (\d+) prompt tokens had been read before", err).groups())
    assert prompt > read >= len(shared_engine("none").encode(talk("hello"))) + 11  # all but the last token's


def test_options_commands_and_files(pipe, tmp_path):
    file = tmp_path / "talk.json"
    options = ["--system", "be brief", "--max-tokens", "8", "--temperature", "1", "--seed", "3"]
    controls = {"max_tokens": 8, "temperature": 1.0, "seed": 3, "system": "be brief"}
    out, err = pipe("/help", "one", f"/save {file}", "/reset", "two", "/retry", f"/load {file}", "three", "/quit", "x",
                    options=options)  # fmt: skip
    one, two = said("one", **controls), said("two", **controls)
    assert out.splitlines() == f"{one}\n{two}\n{two}\n{said('one', one, 'three', **controls)}".splitlines()
    assert "/save FILE" in err and "2 messages are in" in err and "2 messages from" in err
    assert json.loads(file.read_text()) == {"model": "tiny", "system": "be brief", "messages": talk("one", one)}
    again, _ = pipe("three", options=[*options[2:], "--load", str(file)])
    assert again == said("one", one, "three", **controls) + "\n"


def test_messages_of_several_lines_and_with_a_slash(pipe, tmp_path):
    file = tmp_path / "talk.json"
    lines = ["one\\", "two", '"""', "three", "", 'four"""', "//five", f"/save {file}"]
    out, _ = pipe(*lines, options=["--max-tokens", "5"])
    messages = json.loads(file.read_text())["messages"]
    assert [one["content"] for one in messages[::2]] == ["one\ntwo", "three\n\nfour", "/five"]
    contents = [one["content"] for one in messages]
    for i in (1, 3, 5):
        assert contents[i] == said(*contents[:i], max_tokens=5)
    assert out == "".join(f"{answer}\n" for answer in contents[1::2])


def test_show_colours_tokens_and_leaves_the_text_as_it_is(pipe):
    shown, _ = pipe("hello", options=["--max-tokens", "20", "--show", "--gamma", "4"])
    assert ANSI.sub("", shown) == said("hello", max_tokens=20) + "\n"
    assert "\x1b[32m" in shown and "\x1b[33;4m" in shown  # drafts that stood, and corrections
    plain, _ = pipe("hello", options=["--max-tokens", "20", "--gamma", "0"])
    assert plain == ANSI.sub("", shown)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nothing", "no command /nothing"),
        ("/save", "/save takes a file"),
        ("/reset now", "/reset takes no argument"),
        ("/load /nowhere/at/all", "No such file"),
        ("/load tests/cli/test_chat.py", "holds no conversation"),
        ("/save /nowhere/at/all", "No such file"),
        ("/retry", "no message to answer again"),
        ("word " * 2000, "the model's context ends at 1024"),
    ],
)
def test_a_line_that_fails_is_told_and_the_talk_goes_on(pipe, line, words):
    out, err = pipe(line, "hello", options=["--max-tokens", "4"], code=1)
    assert out == said("hello", max_tokens=4) + "\n"
    assert [text for text in err.splitlines() if text.startswith("outpace: error: ") and words in text]


def test_input_that_is_not_utf8(pipe):
    out, err = pipe(b"caf\xe9\n", "hello", options=["--max-tokens", "4"], code=1)
    assert out == said("hello", max_tokens=4) + "\n" and "is not utf-8" in err


@pytest.mark.parametrize(
    "messages", ["{", "[]", '{"messages": []}', '{"system": null, "messages": [{"role": "user"}]}']
)
def test_a_file_that_holds_no_conversation(pipe, tmp_path, messages):
    file = tmp_path / "talk.json"
    file.write_text(messages)
    out, err = pipe(options=["--load", str(file)], code=1)
    assert (out, err.count("\n")) == ("", 1) and "holds no conversation" in err


def test_a_model_without_a_chat_template(pipe, monkeypatch):
    engine = dataclasses.replace(shared_engine("none").target, chat_template=None)
    monkeypatch.setattr("outpace.commands.chat.load_from", lambda args, **more: SimpleNamespace(target=engine))
    out, err = pipe("hello", code=1)
    assert out == "" and "has no chat template" in err


@needs_torch
def test_ctrl_c_ends_a_pipe_with_what_was_answered():
    process = subprocess.Popen(
        command(*ENDLESS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what a buffer has read, communicate would not see
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\nnever read\n")
    first = process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=120)
    text = (first + rest).decode()
    assert process.returncode == 130 and b"Traceback" not in err
    assert said("hello", max_tokens=None, ignore_eos=True).startswith(text.removesuffix("\n")) and text.count("\n") > 0


# ---- at a terminal


def command(*options):
    return [sys.executable, "-m", "outpace", *CHAT, *options]


# Slow enough to be interrupted.
ENDLESS = ["--max-tokens", "none", "--ignore-eos", "--gamma", "0", "--backend", "torch", "--weights", "f32"]


class Terminal:
    """A chat behind a pseudo-terminal."""

    def __init__(self, *options):
        self.side, other = pty.openpty()
        self.process = subprocess.Popen(command(*options), stdin=other, stdout=other, stderr=other, close_fds=True,
                                        start_new_session=True, env={**os.environ, "TERM": "xterm"},
                                        preexec_fn=self._own_terminal)  # fmt: skip
        os.close(other)
        self.text = ""

    @staticmethod
    def _own_terminal():
        import fcntl
        import termios

        signal.signal(signal.SIGINT, signal.default_int_handler)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that typing Ctrl-C sends the signal

    def type(self, text):
        os.write(self.side, text.encode())

    def wait(self, pattern, seconds=120):
        """What was printed until the pattern matches; that is then behind us."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.side], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.text!r}"
            try:
                self.text += ANSI.sub("", os.read(self.side, 65536).decode(errors="replace")).replace("\r", "")
            except OSError:  # the other side has closed
                raise AssertionError(f"it ended without {pattern!r}: {self.text!r}") from None
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def interrupt(self) -> int:
        """Ctrl-C until it leaves: the first one stops the answer, and may come before or after the next prompt."""
        for _ in range(4):
            self.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(8)  # leaving takes a moment, in which another one would kill it
        return self.end()

    def end(self):
        """Its exit status."""
        try:
            return self.process.wait(30)
        finally:
            os.close(self.side)


@pytest.fixture
def terminal():
    opened = []

    def start(*options):
        opened.append(Terminal(*options))
        opened[-1].wait(r"> $")
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()
        one.process.wait()


def test_a_talk_at_a_terminal(terminal, tmp_path):
    history = tmp_path / "history"
    history.write_text("hello\n")
    chat = terminal("--max-tokens", "12", "--history", str(history))
    chat.type("\x1b[A\r")  # one line up
    assert f"hello\n{said('hello', max_tokens=12)}\n" in chat.wait(r"> $")
    chat.type('"""\r')
    chat.wait(r"\. $")
    chat.type('two"""\r')
    chat.wait(r"> $")
    chat.type("\x04")
    assert chat.end() == 0
    assert history.read_text().splitlines() == ["hello", '"""', 'two"""']


@needs_torch
def test_ctrl_c_stops_the_answer_and_keeps_its_text(terminal, tmp_path):
    file = tmp_path / "talk.json"
    chat = terminal(*ENDLESS)
    chat.type("hello\r")
    chat.wait(r"hello\ndef")
    chat.type("\x03")
    chat.wait(r"> $")
    chat.type(f"/save {file}\r")
    chat.wait("messages are in")
    messages = json.loads(file.read_text())["messages"]
    whole = said("hello", max_tokens=None, ignore_eos=True)
    assert len(messages) == 2 and len(messages[1]["content"]) < len(whole)
    assert whole.startswith(messages[1]["content"])
    chat.wait(r"> $")
    chat.type("\x03")
    chat.wait(r"Ctrl-C once more leaves(.|\n)*> $")
    chat.type("/retry\r")  # any line takes that back
    chat.wait(r"retry\ndef")
    assert chat.interrupt() == 130


# ---- parts


@pytest.mark.parametrize(("text", "spellings", "pieces"), CUT_CASES)
def test_text_is_cut_at_its_tokens(text, spellings, pieces):
    assert cut(text, spellings) == pieces


def test_a_terminal_obeys_nothing_that_a_model_says():
    assert harmless("a\x1b]0;title\x07\tb\nc\x9b31m\r") == "a\ufffd]0;title\ufffd\tb\nc\ufffd31m\ufffd"


def test_colours_end_with_the_line():
    assert coloured("a\n\nb", "lookup") == "\x1b[34ma\x1b[0m\n\n\x1b[34mb\x1b[0m"
    assert coloured("a", "plain") == "a"
    assert coloured("a", "suffix_tree").startswith("\x1b[35m")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], "a"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (["a\\"], "a"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""one line"""'], "one line"),
        (['"""', "to the end"], "to the end"),
        (['"""', "ends in a backslash\\", '"""'], "ends in a backslash\\"),
    ],
)
def test_messages_from_lines(lines, message):
    rest = iter(lines)

    def read(prompt):
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    assert read_message(read) == message


def test_the_second_ctrl_c_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with interrupts() as asked:
        assert not asked()
