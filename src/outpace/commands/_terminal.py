"""What commands need of a terminal: Ctrl-C that stops cleanly, colours for how tokens came, lines and messages."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ..core.errors import ParameterError

if TYPE_CHECKING:
    from types import FrameType

    from ..engine.engine import Engine
    from ..engine.stream import Event, Stream
    from ..text.tokenizer import Tokenizer

_COLOURS = {"draft_model": "32", "lookup": "34", "correction": "33;4", "bonus": "33", "plain": ""}
_OTHER = "35"
# Of a model's words, a terminal must obey none: control characters other than the line's end and the tab are shown.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C interrupts nothing: the function it yields says whether there was one. The next
    raises KeyboardInterrupt. (A round that is interrupted in its middle loses every request that takes part.)"""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def events(engine: Engine, stream: Stream, asked: Callable[[], bool]) -> Iterator[Event]:
    """The stream's events. Between two rounds, also of the prompt, ``asked`` may end it: it is then cancelled."""
    while stream.result is None:
        if asked():
            stream.cancel()
        event = stream.poll()
        if event is not None:
            yield event
        else:
            engine.step()


def cut(text: str, spellings: Sequence[str]) -> list[str]:
    """A text cut at its tokens, which spell ``spellings`` alone. A token whose spelling is not in the text (a part of
    a character, an end token) gets nothing; what no token spells goes to the one before it."""
    pieces: list[str] = []
    at = 0
    for spelling in spellings:
        near = text.find(spelling, at, at + 8 + len(spelling)) if spelling and "\ufffd" not in spelling else -1
        if near < 0:
            pieces.append("")
            continue
        if near > at and pieces:
            pieces[-1] += text[at:near]
            at = near
        pieces.append(text[at : near + len(spelling)])
        at = near + len(spelling)
    if at < len(text):
        pieces.append((pieces.pop() if pieces else "") + text[at:])
    return pieces


def coloured(text: str, origin: str) -> str:
    """The text in the colour of its origin; line ends stay outside, so that no colour runs on."""
    colour = _COLOURS.get(origin, _OTHER)
    if not colour:
        return text
    lines = text.split("\n")
    return "\n".join(f"\x1b[{colour}m{line}\x1b[0m" if line else "" for line in lines)


def painted(tokenizer: Tokenizer, event: Event, safe: Callable[[str], str]) -> str:
    """The event's text, each token in the colour of its origin. ``safe`` is applied to the model's words alone."""
    spellings = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in event.token_ids]
    origins = [*event.origins, "plain"]
    pieces = cut(event.text, spellings)
    return "".join(coloured(safe(piece), origins[i]) for i, piece in enumerate(pieces))


def legend() -> str:
    """What the colours mean, in one line: accepted drafts by their drafter, then the target's own tokens."""
    origins = ("draft_model", "lookup", "other drafters", "correction", "bonus", "plain")
    return " · ".join(coloured(origin.replace("_", " "), origin) for origin in origins)


def harmless(text: str) -> str:
    """The text without what a terminal would obey."""
    return text.translate(_CONTROLS)


def safe_for(stream: TextIO) -> Callable[[str], str]:
    """What the words of a model, and of its files, go through before they are printed to the stream: a terminal gets
    none that it would obey, a pipe or a file all of them."""
    return harmless if stream.isatty() else str


def accept_any_text() -> None:
    """Let standard output and standard error show characters that their encoding lacks, as \\u65e5, instead of failing.
    Where one of them, or standard input, is closed, nothing takes its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, mode), encoding="utf-8"))
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def read_message(read: Callable[[str], str]) -> str:
    """One message from lines that ``read(prompt)`` gives: a line that ends in a backslash goes on in the next, and
    from three double quotes to the next three everything belongs to it. Raises EOFError at the end of the input."""
    line = read("> ")
    text = line
    if line.lstrip().startswith('"""'):
        text = line.lstrip()[3:]
        while not text.rstrip().endswith('"""'):
            try:
                text += "\n" + read(". ")
            except EOFError:
                return text.strip("\n")
        return text.rstrip()[:-3].strip("\n")
    while text.endswith("\\"):
        try:
            text = text[:-1] + "\n" + read(". ")
        except EOFError:
            return text[:-1]
    return text


def line_reader(history: str | None) -> Callable[[str], str]:
    """Reads a line: at a terminal with line editing and the history, from a pipe without a prompt. ``history``: a
    file that holds it between sessions."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        _start_readline(history)
        return input

    def read(prompt: str) -> str:
        if sys.stdin.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        try:
            return line.decode(sys.stdin.encoding).removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ParameterError(f"a line of the input is not {error.encoding}: {error.reason}") from None

    return read


def _start_readline(history: str | None) -> None:
    try:
        import readline
    except ImportError:  # Windows: its console edits lines by itself
        return
    if history is None:
        return
    import atexit
    import contextlib

    with contextlib.suppress(FileNotFoundError):
        readline.read_history_file(history)
    readline.set_history_length(1000)
    atexit.register(readline.write_history_file, history)
