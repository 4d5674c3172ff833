"""Measure: plain and speculative decoding, other engines beside them, with everything that explains the numbers.

Everybody answers the same prompts in turns; speed is tokens a second after the first step, so prefill stands apart.
Results are saved as they come, and Ctrl-C keeps what is measured. Without a model named, the qwen2.5-coder pair runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ._models import DEFAULT_TARGET, add_pair_arguments, add_part_options, draft_for, options_from
from ._output import check_output, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from .. import verify

    add_part_options(add_pair_arguments(parser, default=DEFAULT_TARGET, title="models and their options", plan=True))
    group = parser.add_argument_group("what is measured")
    group.add_argument("--drafter", dest="drafters", metavar="NAME,NAME", help="drafters; auto lets the controller "
                       "choose among those named (draft_model,lookup,auto with a draft; lookup without)")  # fmt: skip
    group.add_argument(
        "--gamma", dest="gammas", metavar="N,N", help="drafted tokens a round; auto: the controller's (auto)"
    )
    group.add_argument("--accept", choices=verify.names(), help="acceptance rule (match)")
    group.add_argument("--prompts", default="built-in", metavar="FILE", help="built-in (the default), text, or JSON "
                       "lines: ours, Spec-Bench's question.jsonl, HumanEval's")  # fmt: skip
    group.add_argument("--category", metavar="NAME,NAME", help="these categories only")
    group.add_argument("--limit", type=int, metavar="N", help="prompts of each category, at most")
    group.add_argument("--temperature", default="0,1", metavar="T,T", help="temperatures (0,1)")
    group.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens of each answer (128)")
    group.add_argument("--repeat", type=int, default=1, metavar="N", help="answers to each prompt (1)")
    peers = parser.add_argument_group("other engines")
    peers.add_argument("--peers", metavar="NAME,NAME", help="engines to run beside ours, each in the settings that are "
                       "fastest on other prompts: llama_cpp, openvino, transformers, economize, vllm")  # fmt: skip
    peers.add_argument("--peers-folder", default=".peers", metavar="FOLDER", help="what `make peers` made (.peers)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write every run and its provenance")
    output.add_argument("--html", metavar="FILE", help="write a report: tables and plots in one file")
    output.add_argument("--markdown", metavar="FILE", help="write the tables as a Markdown page")
    output.add_argument("--from-json", nargs="+", metavar="FILE", help="measure nothing: print and draw what --json "
                        "wrote, several files of the same models together")  # fmt: skip
    output.add_argument("--quiet", action="store_true", help="no progress lines")


def run(args: argparse.Namespace) -> int:
    """Measure, save, print. 130 after Ctrl-C, 1 when nothing was measured."""
    for option in ("json", "html", "markdown"):
        check_output(f"--{option}", getattr(args, option))
    from ..bench.measure import merge
    from ..bench.report import html_report
    from ..bench.tables import aligned, facts, page, summary_table

    if args.from_json:
        measurement = merge([_read(Path(name)) for name in args.from_json])
    else:
        measurement = _measure(args)
    print("\n".join(facts(measurement)))
    if measurement.runs:
        print("\n" + aligned(summary_table(measurement)))
    if args.json and not args.from_json:
        write_output("--json", args.json, measurement.as_json())
    if args.html:
        write_output("--html", args.html, html_report(measurement))
    if args.markdown:
        write_output("--markdown", args.markdown, page(measurement))
    if not measurement.complete:
        return 130
    return 0 if measurement.runs else 1


def _measure(args):  # type: ignore[no-untyped-def]  # a Measurement, imported late
    from ..bench import session, workload
    from ..bench.contenders import modes
    from ..core.errors import ParameterError
    from ..core.threads import default_threads
    from ..engine.build import open_draft, open_target

    target, draft, options = options_from(args)
    for name in ("max_tokens", "repeat"):
        if getattr(args, name) < 1:
            raise ParameterError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    temperatures = [_number(text, "--temperature", float) for text in _listed(args.temperature)]
    told = args.gammas or ("auto" if options.gamma is None else str(options.gamma))
    gammas = [None if text == "auto" else _number(text, "--gamma", int) for text in _listed(told)]
    prompts = workload.load_prompts(args.prompts, args.limit)
    if args.category:
        known = workload.categories(prompts)
        for category in _listed(args.category):
            if category not in known:
                raise ParameterError(f"--category must be among {', '.join(known)}, not {category!r}")
        prompts = [prompt for prompt in prompts if prompt.category in _listed(args.category)]
    target = target or DEFAULT_TARGET
    named = _listed(args.drafters) if args.drafters else list(options.drafters) or None
    ours = [name for name in named or () if name != "auto"]
    if draft is None and (named is None or ours):
        draft = draft_for(target, ours, options.drafter_options)
    if named is None:
        named = ["draft_model", "lookup", "auto"] if draft else ["lookup"]
    peers = _listed(args.peers) if args.peers else []
    for peer in peers:
        modes(peer, draft is not None)  # before minutes are spent on loading
    experiment = session.Experiment(
        target=open_target(target, options),
        draft=open_draft(draft, options) if draft is not None else None,
        drafters=named,
        gammas=gammas,
        options=options,
        prompts=prompts,
        temperatures=temperatures,
        max_tokens=args.max_tokens,
        repeats=args.repeat,
        threads=options.threads or default_threads().count,
        peers=peers,
        peers_folder=Path(args.peers_folder),
    )
    say = (lambda line: None) if args.quiet else (lambda line: print(line, file=sys.stderr, flush=True))
    return session.run_experiment(experiment, Path(args.json) if args.json else None, say)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str, option: str, kind):  # type: ignore[no-untyped-def]
    from ..core.errors import ParameterError

    try:
        value = kind(text)
    except ValueError:
        raise ParameterError(f"{option} takes numbers, not {text!r}") from None
    if value < 0:
        raise ParameterError(f"{option} must be at least 0, not {text}")
    return value


def _read(path: Path):  # type: ignore[no-untyped-def]
    from ..bench.measure import Measurement
    from ..core.errors import ParameterError

    try:
        return Measurement.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path} is not what `outpace bench --json` writes: {error}") from error
