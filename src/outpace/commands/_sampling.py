"""The options of sampling, declared once, and the parameters they make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.types import Constraint, SamplingParams


def add_sampling_arguments(parser: argparse.ArgumentParser, *, max_tokens: int = 256) -> None:
    """Everything that :func:`sampling_params` reads."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    group.add_argument("--top-k", type=int, default=0, metavar="N", help="keep the N most probable tokens; 0 is off")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep the smallest set with mass P")
    group.add_argument("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P times the likeliest")
    group.add_argument("--seed", type=int, help="the same seed gives the same answer; drawn afresh when left out")
    group.add_argument("--max-tokens", type=_limit, default=max_tokens, metavar="N",
                       help=f"tokens at most ({max_tokens}), or none")  # fmt: skip
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop before TEXT; repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="go on past the model's end tokens")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="X",
                       help="take X from the logits of tokens generated before (-2 to 2)")  # fmt: skip
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X",
                       help="take X for each time a token was generated (-2 to 2)")  # fmt: skip
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X",
                       help="divide the logits of tokens of prompt and answer by X (1 is off)")  # fmt: skip
    group.add_argument("--logit-bias", type=_bias, action="append", default=[], metavar="ID=X",
                       help="add X (-100 to 100) to the logit of token ID; repeatable")  # fmt: skip
    only = group.add_mutually_exclusive_group()
    only.add_argument("--json-object", action="store_true", help="answer with a JSON object")
    only.add_argument("--json-schema", metavar="FILE", help="answer with JSON that fits the schema in FILE")
    only.add_argument("--regex", metavar="PATTERN", help="answer with text that PATTERN matches as a whole")
    only.add_argument("--grammar", metavar="FILE", help="answer by the grammar in FILE.lark or FILE.gbnf")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling options as parameters. Raises ParameterError on impossible values."""
    from dataclasses import fields

    from ..core.types import SamplingParams

    given = {one.name: getattr(args, one.name) for one in fields(SamplingParams) if hasattr(args, one.name)}
    given |= {"logit_bias": dict(args.logit_bias), "constraint": _constraint(args)}
    return SamplingParams(**given)


def _constraint(args: argparse.Namespace) -> Constraint | None:
    from ..core.errors import ParameterError
    from ..core.types import Constraint

    if args.json_object:
        return Constraint("json_object")
    if args.regex is not None:
        return Constraint("regex", args.regex)
    path = args.json_schema or args.grammar
    if path is None:
        return None
    kind = "json_schema" if args.json_schema else Path(path).suffix[1:]
    if kind not in ("json_schema", "lark", "gbnf"):
        raise ParameterError(f"--grammar needs a file that ends in .lark or .gbnf, not {path}")
    try:
        return Constraint(kind, Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} cannot be read: {error}") from None


def _bias(text: str) -> tuple[int, float]:
    """A token id and what is added to its logit, as in 42=-3.5."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a token id, =, and a number, not {text!r}") from None


def _limit(text: str) -> int | None:
    """A number of tokens, or "none" for as many as the context holds."""
    try:
        return None if text == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number or none, not {text!r}") from None
