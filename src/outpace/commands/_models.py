"""The options that choose models, drafters and rule, and the engine they ask for. What the engine takes is declared in
core/load_options.py; the flags are made from it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.load_options import LoadOptions
    from ..core.options import Option
    from ..engine.engine import Engine

DEFAULT_TARGET = "qwen2.5-coder-1.5b"
_GROUPED = ("drafter_options", "rule_options")


def add_model_arguments(
    parser: argparse.ArgumentParser, *, default: str = DEFAULT_TARGET, title: str = "models and drafting"
) -> None:
    """Everything that :func:`load_from` reads. ``default``: the target when none is named."""
    group = _add_names(parser, default, title)
    add_load_flags(group)
    _add_plan(group)
    add_part_options(group)


def add_pair_arguments(
    parser: argparse.ArgumentParser, *, default: str, title: str, plan: bool = False
) -> argparse._ArgumentGroup:
    """A target and a draft, and how to hold them: for commands that drive the models themselves. ``plan``: which may
    come from a plan."""
    from dataclasses import fields

    from ..core.load_options import LoadOptions

    group = _add_names(parser, default, title)
    add_load_flags(group, [one.name for one in fields(LoadOptions) if one.metadata.get("models")])
    if plan:
        _add_plan(group)
    return group


def add_part_options(group: argparse._ArgumentGroup) -> None:
    """A flag for every option of every drafter and rule, such as --lookup-min-match and --typical-epsilon."""
    for name, option, dest in _part_options():
        flag, about = f"--{name}-{option.name}".replace("_", "-"), f"option of {name} (default {option.default})"
        if option.kind is bool:
            group.add_argument(flag, dest=dest, action=argparse.BooleanOptionalAction, help=about)
        else:
            group.add_argument(flag, dest=dest, type=option.kind, metavar=option.kind.__name__.upper()[:1], help=about)


def _add_names(parser: argparse.ArgumentParser, default: str, title: str) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    group.add_argument("--target", metavar="MODEL", help=f"catalogue name, GGUF file or directory ({default})")
    group.add_argument("--draft", metavar="MODEL", help="the draft model (by default the catalogue's for the target)")
    return group


def _add_plan(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--plan", metavar="FILE", help="the settings that `outpace tune` found; other options go before")


def add_load_flags(group: argparse._ArgumentGroup, names: Sequence[str] = ()) -> None:
    """A flag for each field of LoadOptions that says how it is told, or for these ``names`` alone."""
    from dataclasses import fields
    from typing import get_type_hints

    from .. import drafters, verify
    from ..core.load_options import LoadOptions

    hints = get_type_hints(LoadOptions)
    for field in fields(LoadOptions):
        told = field.metadata
        if not told or (names and field.name not in names):
            continue
        flag, about = f"--{field.name}".replace("_", "-"), told["help"]
        if field.name == "drafter":
            about += f": {', '.join(drafters.names())}"
        if hints[field.name] is bool:
            group.add_argument(flag, action="store_true", default=None, help=about)
        else:
            kind = int if hints[field.name] == (int | None) else str
            group.add_argument(
                flag,
                type=kind,
                metavar=told["metavar"],
                help=about,
                choices=verify.names() if field.name == "accept" else told["choices"],
            )


def catalogue_draft(target: str) -> str | None:
    """The draft that the catalogue names for a target; None when it knows none."""
    from .. import catalogue

    return next((entry.draft for entry in catalogue.catalogue() if entry.name == target), None)


def options_from(args: argparse.Namespace) -> tuple[str | None, str | None, LoadOptions]:
    """Target, draft and settings, as far as the flags and the plan name them; flags go before the plan. Raises
    ParameterError for a plan of another target."""
    from dataclasses import fields

    from ..core.errors import ParameterError
    from ..core.load_options import LoadOptions
    from ..engine.plan import read_plan

    target, draft, options = args.target, getattr(args, "draft", None), LoadOptions()
    if getattr(args, "plan", None):
        plan = read_plan(args.plan)
        if target not in (None, plan.target):
            raise ParameterError(f"{args.plan} is a plan for {plan.target}, not for {target}; tune that one")
        target, draft, options = plan.target, draft or plan.draft, plan.options
    names = {one.name for one in fields(LoadOptions) if one.metadata}
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    grouped = {name: {part: dict(values) for part, values in getattr(options, name).items()} for name in _GROUPED}
    if "drafter" in given:  # what the plan says of drafters that are not used says nothing here
        used = LoadOptions(drafter=given["drafter"]).drafters
        grouped["drafter_options"] = {one: values for one, values in grouped["drafter_options"].items() if one in used}
    for name, option, dest in _part_options():
        value = getattr(args, dest, None)
        if value is not None:
            grouped[dest.split(".")[0]].setdefault(name, {})[option.name] = value
    return target, draft, options.changed({**given, **grouped})


def load_from(args: argparse.Namespace, *, default: str = DEFAULT_TARGET, **more: object) -> Engine:
    """The engine that the options of :func:`add_model_arguments` ask for; ``more``: further fields of LoadOptions.

    Raises what :func:`outpace.load` does, and ParameterError for an option of a drafter that is not used.
    """
    from ..engine.build import load

    target, draft, options = options_from(args)
    target = target or default
    return load(target, draft or draft_for(target, options.drafters, options.drafter_options), options, **more)


def draft_for(target: str, names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The catalogue's draft for a target, where one of the drafters needs a draft model, or none is named."""
    from .. import drafters

    required = drafters.requirements(drafters.configure(names, options)) if names else {}
    if not names or any(one.draft_model for one in required.values()):
        return catalogue_draft(target)
    return None


def _part_options() -> Iterator[tuple[str, Option, str]]:
    """Name of a drafter or rule, its option, and where argparse keeps it. gamma has a flag of its own."""
    from .. import drafters, verify

    for kind, room in (("drafter_options", drafters), ("rule_options", verify)):
        for name in room.names():
            for option in room.options(name):
                yield name, option, f"{kind}.{name}.{option.name}"
