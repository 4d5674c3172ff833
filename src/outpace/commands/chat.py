"""Talk with a model in the terminal.

Without a model named, the qwen2.5-coder pair of the catalogue answers. Lines that begin with / are commands; /help
lists them. Ctrl-C stops an answer and keeps what there is of it; pressed twice, it leaves. From a pipe, each line is a
message, and standard output has the answers only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ._models import add_model_arguments, load_from
from ._sampling import add_sampling_arguments, sampling_params
from ._terminal import events, interrupts, legend, line_reader, painted, read_message, safe_for
from .generate import summary

if TYPE_CHECKING:
    from ..core.types import SamplingParams
    from ..engine.engine import Engine
    from ..engine.stream import Event, Result

HELP = '''/help         this list
/stats        what the last answer took, and what drafting brought
/show         colour each token by how it came, or stop doing so
/retry        answer the last message again
/reset        forget the conversation; the system prompt stays
/save FILE    write the conversation as JSON
/load FILE    go on with a conversation that was saved
/quit         leave, as Ctrl-D does
A line that ends in a backslash goes on in the next one. From """ on, all lines belong to the message, to the next """.
A message that begins with / is written with two of them.'''
_PREFIX_BYTES = 1 << 30  # keys and values of earlier turns: each turn reads on from where the last one ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    parser.add_argument("--load", metavar="FILE", help="go on with a conversation that /save wrote")
    parser.add_argument("--show", action="store_true", help="colour each token by how it came")
    parser.add_argument("--history", metavar="FILE", help="keep the lines typed, for the next session's arrow keys")
    add_model_arguments(parser)
    add_sampling_arguments(parser, max_tokens=1024)


@dataclass
class Chat:
    """A conversation and how it is shown."""

    engine: Engine
    params: SamplingParams
    system: str | None
    show: bool
    messages: list[dict[str, str]] = field(default_factory=list)
    last: Result | None = None

    def ask(self, text: str) -> bool:
        """Answer a message and print the answer as it comes; whether it came whole. An answer that was stopped stays
        in the conversation as far as it came; a message without any answer does not."""
        self.messages.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self.system}] if self.system else []
        answer = ""
        try:
            with interrupts() as asked, self.engine.stream([*system, *self.messages], self.params) as stream:
                for event in events(self.engine, stream, asked):
                    answer += event.text
                    self._print(event)
            self.last = stream.result
        finally:
            if answer:
                print()
                self.messages.append({"role": "assistant", "content": answer})
            else:
                self.messages.pop()
        assert self.last is not None
        if self.last.finish_reason == "length":
            _note("[cut: the answer may have no more tokens, see --max-tokens and --context]")
        return self.last.finish_reason != "cancelled"

    def retry(self) -> bool:
        """Answer the last message again, as :meth:`ask` does. Raises ParameterError when there is none."""
        from ..core.errors import ParameterError

        if not self.messages:
            raise ParameterError("there is no message to answer again")
        text = self.messages[-2]["content"]
        del self.messages[-2:]
        return self.ask(text)

    def _print(self, event: Event) -> None:
        safe = safe_for(sys.stdout)
        if not self.show:
            print(safe(event.text), end="", flush=True)
            return
        print(painted(self.engine.target.tokenizer, event, safe), end="", flush=True)


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends. 0, or 1 when a message of a pipe could not be answered, or 130 after Ctrl-C."""
    from ..core.errors import OutpaceError, ParameterError

    params = sampling_params(args)  # before minutes are spent on loading
    engine = load_from(args, prefix_bytes=_PREFIX_BYTES)
    if not engine.target.chat_template:
        raise ParameterError(f"{engine.target.name} has no chat template: `outpace generate` continues its texts")
    chat = Chat(engine, params, args.system, args.show)
    if args.load:
        _load(chat, args.load)
    read = line_reader(args.history)
    typed = sys.stdin.isatty()
    if typed:
        _note(f"{engine.target.name}. /help lists the commands, Ctrl-D leaves.")
    status, leaving = 0, False
    while True:
        try:
            text = read_message(read)
            leaving = True  # Ctrl-C once stops the answer, twice leaves
            if text.startswith("/") and not text.startswith("//"):
                whole = _command(chat, text)
                if whole is None:
                    return status
            elif text.strip():
                whole = chat.ask(text[1:] if text.startswith("//") else text)
            if not whole and not typed:
                return 130
            leaving = not whole
        except EOFError:
            if typed:
                print()
            return status
        except KeyboardInterrupt:
            if leaving or not typed:
                print()
                return 130
            leaving = True
            _note("\nCtrl-C once more leaves.")
        except (
            OutpaceError,
            OSError,
            ValueError,
        ) as error:  # ValueError: a name that no file can have, a text that none can hold
            _note(f"outpace: error: {error}")
            status = status if typed else 1
            leaving = False


def _command(chat: Chat, line: str) -> bool | None:
    """Carry out a command. Whether it came to its end; None: leave. Raises ParameterError, OSError."""
    from ..core.errors import ParameterError

    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if (name in ("/save", "/load")) != bool(rest):
        raise ParameterError(f"{name} takes {'no argument' if rest else 'a file'}; /help lists the commands")
    if name == "/help":
        _note(HELP)
    elif name == "/stats":
        _note(_stats(chat))
    elif name == "/show":
        chat.show = not chat.show
        print(legend() if chat.show else "Colours are off.", file=sys.stderr, flush=True)
    elif name == "/retry":
        return chat.retry()
    elif name == "/reset":
        chat.messages.clear()
        _note("The conversation is forgotten.")
    elif name == "/save":
        _save(chat, rest)
    elif name == "/load":
        _load(chat, rest)
    elif name == "/quit":
        return None
    else:
        raise ParameterError(f"there is no command {name}; /help lists them, and // begins a message with /")
    return True


def _stats(chat: Chat) -> str:
    result = chat.last
    if result is None:
        return "Nothing has been answered yet."
    report = result.report
    origins = Counter(result.origins).most_common()
    lines = [
        summary(result, chat.params.temperature > 0),
        " · ".join(f"{origin.replace('_', ' ')} {n}" for origin, n in origins),
    ]
    lines.append(f"{report.prompt_cached} of {report.prompt_tokens} prompt tokens had been read before")
    if report.predicted_speedup and report.plain_seconds:
        plain = report.emitted / report.plain_seconds
        lines.append(f"plain decoding: about {plain:.1f} tok/s, so x{report.predicted_speedup:.2f}")
    return "\n".join(lines)


def _save(chat: Chat, file: str) -> None:
    saved = {"model": chat.engine.target.name, "system": chat.system, "messages": chat.messages}
    Path(file).expanduser().write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _note(f"{len(chat.messages)} messages are in {file}.")


def _load(chat: Chat, file: str) -> None:
    from ..core.errors import ParameterError

    try:
        saved = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
        system = saved["system"]
        messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in saved["messages"]]
    except (ValueError, LookupError, TypeError) as error:
        raise ParameterError(f"{file} holds no conversation that /save wrote: {error!r}") from None
    chat.system, chat.messages = system, messages
    _note(f"{len(messages)} messages from {file}.")


def _note(text: str) -> None:
    """Tell the user; standard output has the answers only."""
    print(safe_for(sys.stderr)(text), file=sys.stderr, flush=True)
