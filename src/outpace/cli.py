"""The ``outpace`` command: finds the subcommand, runs it, and turns errors into messages."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__, commands
from .commands._terminal import accept_any_text, safe_for
from .core.errors import OutpaceError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status: 1 after an error of ours, 130 after Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    accept_any_text()
    try:
        args = _parser(argv).parse_args(argv)
        status: int = importlib.import_module(f"{commands.__name__}.{args.command}").run(args)
        sys.stdout.flush()
        return status
    except OutpaceError as error:
        print(safe_for(sys.stderr)(f"outpace: error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("outpace: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            message += " (what is no option but begins with - goes behind --)"
        super().error(message)


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="outpace", description="Make a language model answer faster without changing what it says.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for module in pkgutil.iter_modules(commands.__path__):
        if module.name.startswith("_"):  # what several commands share
            continue
        command = importlib.import_module(f"{commands.__name__}.{module.name}")
        about = (command.__doc__ or "").strip()
        summary = about.splitlines()[0].rstrip(".") if about else None
        subparser = subparsers.add_parser(
            module.name, help=summary, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if module.name == chosen:  # only the command that is run pays for its arguments
            command.add_arguments(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
