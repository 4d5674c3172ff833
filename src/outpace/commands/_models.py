"""The options that choose models, drafter and rule, declared once, and the engine they ask for."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.engine import Engine

DEFAULT_TARGET = "qwen2.5-coder-1.5b"
WEIGHTS = ("auto", "file", "q8", "q4", "q4_0", "bf16", "f32")


def add_model_arguments(
    parser: argparse.ArgumentParser, *, default: str = DEFAULT_TARGET, title: str = "models and drafting"
) -> None:
    """Everything that :func:`load_from` reads. ``default``: the target when none is named."""
    from .. import drafters, verify

    group = _add_names(parser, default, title)
    group.add_argument("--drafter", metavar="NAME[,NAME]", help=f"how to draft: {', '.join(drafters.names())} "
                       "(draft_model with a draft, lookup without; both where the controller chooses)")  # fmt: skip
    group.add_argument("--gamma", type=int, metavar="N", help="tokens drafted a round, the controller's choice if not "
                       "given; 0 is plain decoding")  # fmt: skip
    group.add_argument("--controller", choices=("auto", "fixed"), help="auto: draft as much as pays, in every round; "
                       "fixed: always as many (auto)")  # fmt: skip
    group.add_argument("--plan", metavar="FILE", help="the settings that `outpace tune` found; other options go before")
    group.add_argument("--accept", choices=verify.names(), default="match", help="acceptance rule (match)")
    group.add_argument(
        "--draft-head", type=int, metavar="N", help="keep N token ids of the draft's output head; 0: all"
    )
    group.add_argument("--context", type=int, metavar="N", help="use at most N tokens of the model's context")
    group.add_argument("--special-tokens-in-messages", action="store_true", help="let chat messages write the model's "
                       "special tokens, such as <|im_end|>; otherwise these are text")  # fmt: skip
    for name, field in _drafter_options():
        flag = f"--{name}-{field.name}".replace("_", "-")
        kind = str if field.default is None else type(field.default)
        group.add_argument(flag, dest=f"{name}.{field.name}", type=kind, metavar=kind.__name__.upper()[:1],
                           help=f"option of the {name} drafter (default {field.default})")  # fmt: skip


def add_pair_arguments(parser: argparse.ArgumentParser, *, default: str, title: str) -> None:
    """A target and a draft, and how to hold them: for commands that drive the models themselves."""
    _add_names(parser, default, title)


def _add_names(parser: argparse.ArgumentParser, default: str, title: str) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    group.add_argument("--target", metavar="MODEL", help=f"catalogue name, GGUF file or directory ({default})")
    group.add_argument("--draft", metavar="MODEL", help="the draft model (by default the catalogue's for the target)")
    group.add_argument(
        "--weights", choices=WEIGHTS, default="auto", help="the target's weights: as in the file, or rounded"
    )
    group.add_argument("--draft-weights", choices=WEIGHTS, default="auto", help="the draft's (auto: q4_0 if it is big)")
    group.add_argument("--backend", choices=("auto", "native", "torch"), default="auto", help="C kernels, or torch")
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads to compute with (one a physical core, as far as the CPU quota allows)",
    )
    return group


def check_threads(threads: int | None) -> None:
    """Raise ParameterError unless ``threads`` is a number of threads, or None."""
    from ..core.errors import ParameterError

    if threads is not None and threads < 1:
        raise ParameterError(f"--threads must be at least 1, not {threads}")


def catalogue_draft(target: str) -> str | None:
    """The draft that the catalogue names for a target; None when it knows none."""
    from .. import catalogue

    return next((entry.draft for entry in catalogue.catalogue() if entry.name == target), None)


def load_from(args: argparse.Namespace, *, default: str = DEFAULT_TARGET, **more: object) -> Engine:
    """The engine that the options of :func:`add_model_arguments` ask for; ``more`` goes to ``load`` as it is.

    Raises what :func:`outpace.load` does, and ParameterError for an option of a drafter that is not used.
    """
    from .. import drafters
    from ..core.errors import ParameterError
    from ..engine.build import default_drafters, load

    prior = follow_plan(args) if args.plan else None
    check_threads(args.threads)
    target = args.target or default
    names = [name.strip() for name in args.drafter.split(",")] if args.drafter else []
    draft = args.draft
    if draft is None and (not names or any(drafters.module(name).NEEDS_DRAFT for name in names)):
        draft = catalogue_draft(target)
    controller = args.controller or "auto"
    chosen = names or default_drafters(draft is not None, controller == "auto" and args.gamma is None)
    options = {}
    for name, field in _drafter_options():
        value = getattr(args, f"{name}.{field.name}")
        if value is None:
            continue
        if name not in chosen:
            raise ParameterError(f"--{name}-{field.name.replace('_', '-')} belongs to the drafter {name!r}, "
                                 f"but {', '.join(chosen)} is used")  # fmt: skip
        options[field.name] = value
    return load(target, draft, drafter=names or None, gamma=args.gamma, controller=controller,
                prior=prior, accept=args.accept, weights=args.weights,
                draft_weights=args.draft_weights, draft_head=args.draft_head, backend=args.backend,
                threads=args.threads, context=args.context,
                special_tokens_in_messages=args.special_tokens_in_messages, options=options, **more)  # type: ignore[arg-type]  # fmt: skip


def follow_plan(args: argparse.Namespace) -> dict[str, float]:
    """Set the options that were left open as the plan says; what it believes of its drafters. Raises ParameterError
    for a plan of another target."""
    from ..core.errors import ParameterError
    from ..engine.plan import read_plan

    plan = read_plan(args.plan)
    if args.target not in (None, plan.target):
        raise ParameterError(f"{args.plan} is a plan for {plan.target}, not for {args.target}; tune that one")
    for name, value in plan.arguments().items():
        if name != "prior" and getattr(args, name) in (None, "auto"):
            setattr(args, name, value)
    args.controller = args.controller or plan.controller
    return dict(plan.prior)


def _drafter_options() -> list[tuple[str, dataclasses.Field]]:  # type: ignore[type-arg]
    """The fields of every drafter's Config, but for gamma, which has a flag of its own."""
    from .. import drafters

    modules = [(name, drafters.module(name)) for name in drafters.names()]
    return [(n, f) for n, module in modules for f in dataclasses.fields(module.Config) if f.name != "gamma"]
