"""Prove that speculation changes nothing.

Prints one line a check, and the verdict last; the exit status is 1 when any check fails. Without a model named, the
tiny pair that ships with Outpace is audited; --quick needs no download and takes less than a minute. --engine audits
another engine from outside, on the model named; `make peers` makes their environments.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ._models import add_pair_arguments, catalogue_draft, options_from
from ._output import check_output, write_output

if TYPE_CHECKING:
    from ..audit.checks import Check, Options

_SECTIONS = """exact: the output's distribution by enumerating every random draw; broken: faults that must be caught;
equality: tokens and bits of the logits against plain decoding; statistical: the first tokens of many seeds against the
exact distribution; soak: random configurations against a naive oracle, on the tiny pair"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--quick", action="store_true", help="a part of every grid, within a minute")
    parser.add_argument("--only", action="append", metavar="SECTION", help=f"one section; repeatable. {_SECTIONS}")
    parser.add_argument("--seed", type=int, default=0, help="of random draws, and of the soak's random cases (0)")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON; -: print that and nothing else")
    parser.add_argument("--soak-cases", type=int, metavar="N", help="how many random configurations (2000; quick 30)")
    parser.add_argument("--soak-case", type=int, metavar="N", help="run one random configuration, and describe it")
    parser.add_argument("--engine", metavar="ENGINE", help="audit another engine: its plain and speculative answers")
    add_pair_arguments(parser, default="tiny", title="models (equality and statistical)")


def run(args: argparse.Namespace) -> int:
    """Audit and print. 0 when every check passed."""
    if args.json != "-":
        check_output("--json", args.json)
    from ..audit.checks import skipped
    from ..audit.run import run_audit

    if args.engine is not None:
        return _engine(args)
    options = _options(args)
    if args.json != "-":
        for drafter in skipped():
            print(f"skip  {drafter}: needs torch, which is not installed (pip install 'outpace[torch]')", flush=True)
    checks = []
    for check in _one_case(args) if args.soak_case is not None else run_audit(options):
        checks.append(check)
        if args.json != "-":
            print(check.line(), flush=True)
    failed = [check for check in checks if not check.passed]
    _write(args.json, _summary(options, checks))
    if args.json != "-":
        seconds = sum(check.seconds for check in checks)
        left_out = f"; left out without torch: {', '.join(skipped())}" if skipped() else ""
        print(f"\n{len(checks) - len(failed)} of {len(checks)} checks passed in {seconds:.0f} s{left_out}", flush=True)
    return 1 if failed or not checks else 0


def _write(file: str | None, found: object) -> None:
    """What --json asks for."""
    if file == "-":
        print(json.dumps(found), flush=True)
    elif file is not None:
        write_output("--json", file, json.dumps(found) + "\n")


def _options(args: argparse.Namespace) -> Options:
    from ..audit.checks import SECTIONS, Options
    from ..core.errors import ParameterError
    from ..engine.build import open_draft, open_target
    from ..text.pairing import check_pair

    for name in ("soak_cases", "soak_case", "seed"):
        if (getattr(args, name) or 0) < 0:
            raise ParameterError(f"--{name.replace('_', '-')} must be at least 0, not {getattr(args, name)}")
    for section in args.only or ():
        if section not in SECTIONS:
            raise ParameterError(f"--only must be one of {', '.join(SECTIONS)}, not {section!r}")
    _, _, load_options = options_from(args)
    if args.target is None:
        if args.draft is not None:
            raise ParameterError("--draft needs a --target to draft for")
        target_name: str = "tiny"
        draft_name: str | None = "tiny-draft"
    else:
        target_name, draft_name = args.target, args.draft
        if draft_name is None:
            draft_name = catalogue_draft(target_name)
    sections = tuple(args.only or SECTIONS)
    target = draft = None
    if {"equality", "statistical"} & set(sections) and args.soak_case is None:
        if args.target is None and args.threads is None:
            load_options = load_options.changed({"threads": 1})
        target = open_target(target_name, load_options)
        if draft_name is not None:
            draft = open_draft(draft_name, load_options)
            check_pair(target.tokenizer, draft.tokenizer, target.name, draft.name)
    return Options(
        target=target, draft=draft, quick=args.quick, sections=sections, seed=args.seed, soak_cases=args.soak_cases
    )


def _engine(args: argparse.Namespace) -> int:
    """What can be seen of another engine from outside: a line for each way to run it, and the verdict."""
    from ..audit import engines
    from ..catalogue import resolve
    from ..core.errors import ParameterError

    if args.target is None:
        raise ParameterError("--engine needs a --target, and takes a --draft")
    outcomes = engines.audit_engine(
        args.engine,
        resolve(args.target),
        resolve(args.draft) if args.draft else None,
        draws=500 if args.quick else 2000,
        threads=args.threads or 1,
        weights=args.weights or "auto",
    )
    if args.json != "-":
        engines.print_table(outcomes)
    _write(args.json, engines.as_dicts(outcomes))
    passed = sum(outcome.passed for outcome in outcomes)
    if args.json != "-":
        print(f"\n{passed} of {len(outcomes)} ways to run it passed")
    return 0 if passed == len(outcomes) else 1


def _one_case(args: argparse.Namespace) -> list[Check]:
    from ..audit import soak
    from ..audit.checks import Check

    if args.json != "-":
        print(soak.case(args.seed, args.soak_case))
    found = soak.run_case(args.seed, args.soak_case)
    if found:
        return [soak.failure(args.seed, args.soak_case, found)]
    return [Check("soak", f"case {args.soak_case}", True, "as the oracle has it")]


def _summary(options: Options, checks: list[Check]) -> dict[str, object]:
    import platform

    from .. import __version__
    from ..audit.checks import skipped
    from ..core.torch_extra import torch_version
    from ..kernels.native import available

    model = options.target and {"name": options.target.name, "weights": options.target.weights,
                                "backend": options.target.backend}  # fmt: skip
    return {
        "outpace": __version__,
        "passed": bool(checks) and all(check.passed for check in checks),
        "quick": options.quick,
        "seed": options.seed,
        "target": model,
        "draft": options.draft and options.draft.name,
        "python": platform.python_version(),
        "torch": torch_version(),
        "skipped": skipped(),
        "kernels": next(iter(available()), None),
        "machine": platform.machine(),
        "seconds": round(sum(check.seconds for check in checks), 1),
        "checks": [check.as_dict() for check in checks],
    }
