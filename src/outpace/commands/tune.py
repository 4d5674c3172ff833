"""Find the fastest way to run a target on this machine.

Tries what could draft for it (models of the catalogue that are here and share its vocabulary, lookup, its own layers,
its own weights in fewer bits), each side by side with plain decoding, prints them ranked, and saves a plan that
`generate`, `chat`, `serve` and `bench` follow with --plan, and two pictures beside it. A way is called faster than
plain decoding, and saved, when the 95% interval for the median of its ratios (by the sign test) lies above 1: of 6 to
8 pairs all must be faster, of 9 to 11 all but one. Where no way is, the plan is plain decoding. A way that drafted
nothing is never faster. --costs only prints what passes cost.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ._models import DEFAULT_TARGET, add_load_flags, add_part_options, options_from
from ._output import check_output, write_output

if TYPE_CHECKING:
    from ..bench.tuning import Found
    from ..control.pass_costs import PassCosts
    from ..core.load_options import LoadOptions
    from ..core.types import SamplingParams
    from ..engine.engine import Engine
    from ..engine.prompts import Prompt
    from ..runtimes.loading import LoadedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="MODEL", help=f"the target ({DEFAULT_TARGET})")
    parser.add_argument(
        "--draft", dest="drafts", action="append", metavar="MODEL", help="a draft to try; repeatable (all that fit)"
    )
    parser.add_argument(
        "--drafter", dest="drafters", action="append", metavar="NAME", help="a drafter to try; repeatable (all)"
    )
    parser.add_argument("--prompts", metavar="FILE", help="prompts of yours: one a line, or JSON lines with a prompt")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="answers to each prompt (2), compared in "
                        "pairs; fewer than 6 pairs in all prove nothing")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens an answer (64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    group = parser.add_argument_group("models and their options")
    add_load_flags(group, ["weights", "draft_weights", "draft_head", "backend", "context"])
    add_part_options(group)
    parser.add_argument(
        "--threads", dest="thread_counts", metavar="N[,N]", help="threads to try (all cores, and half of them)"
    )
    parser.add_argument("--save", default="outpace-plan.json", metavar="FILE", help="the plan (outpace-plan.json)")
    parser.add_argument("--costs", action="store_true", help="print what passes cost, and stop")
    parser.add_argument("--json", action="store_true", help="print the plan to standard output")


def run(args: argparse.Namespace) -> int:
    """Tune and print."""
    from ..bench import tuning
    from ..catalogue import resolve
    from ..control.pass_costs import load_pass_costs
    from ..core.errors import ParameterError
    from ..core.types import SamplingParams
    from ..engine.build import load, open_draft, open_target

    save = Path(args.save)
    resolve(args.target)
    for name in ("tokens", "repeat"):
        if getattr(args, name) < 1:
            raise ParameterError(f"--{name} must be at least 1, not {getattr(args, name)}")
    if not args.costs:
        for file in (save, *_pictures_of(save)):
            check_output("--save", file)
    params = SamplingParams(temperature=args.temperature, seed=0, max_tokens=args.tokens)
    texts = _texts(args.prompts) if args.prompts else list(tuning.PROMPTS)
    options = options_from(args)[2]
    options = options.changed({"threads": _threads(args, options)})
    target = open_target(args.target, options)
    prompts = [_prompt(target, text) for text in texts]
    drafts = args.drafts or tuning.compatible_drafts(target)
    costs = {target.name: load_pass_costs(target)}
    loaded = {name: open_draft(name, options) for name in drafts}
    costs |= {model.name: load_pass_costs(model) for model in loaded.values()}
    _tell(costs_table(costs))
    if args.costs:
        return 0
    chosen = [
        way for way in tuning.ways(drafts, options.drafter_options) if not args.drafters or way.drafter in args.drafters
    ]
    if not chosen:
        raise ParameterError("nothing to try: --drafter leaves nothing over")
    found: list[Found] = []
    engines: dict[str, Engine] = {}
    plain = load(target, drafter="none")
    plain.generate(prompts[0], SamplingParams(max_tokens=4))
    for way in chosen:
        _tell(f"trying {way.label}")
        one, engine = tuning.try_way(way, target, plain, prompts, params, options, args.repeat)
        found.append(one)
        if engine is not None:
            engines[way.label] = engine
    ranked = tuning.rank(found)
    plan = tuning.plan_of(args.target, ranked, options)
    _tell(ranking(ranked))
    write_output("--save", save, plan.as_json())
    pictures = _pictures(ranked, plain, engines, prompts, params, costs, target, save)
    _tell(f"saved {save}, {', '.join(map(str, pictures))}")
    _tell(f"use it: outpace generate --plan {save} ...; its keys: docs/how-to/choose-a-draft.md")
    if args.json:
        print(plan.as_json(), end="")
    return 0


def _pictures(
    ranked: list[Found],
    plain: Engine,
    engines: dict[str, Engine],
    prompts: list[Prompt],
    params: SamplingParams,
    costs: dict[str, PassCosts],
    target: LoadedModel,
    save: Path,
) -> list[Path]:
    from ..bench import tuning

    best = next((one for one in ranked if one.way.drafter == "draft_model" and not one.error), None)
    points, c = [], 0.0
    if best is not None:
        assert best.way.draft is not None
        engine = engines[best.way.label]
        points = tuning.measured_points(plain, engine, prompts, params, _tell)
        behind = [one for name, one in costs.items() if name != target.name and name in best.way.draft]
        c = (behind[0].of(1) if behind else 0.0) / costs[target.name].of(1)
    speed, cost = _pictures_of(save)
    title = f"{target.name}, {best.way.label if best else 'a draft that costs nothing'}, c = {c:.2f}"
    write_output("--save", speed, tuning.speedup_picture(costs[target.name], c, points, title))
    write_output("--save", cost, tuning.cost_picture(costs, f"A pass of {target.name} and its drafts"))
    return [speed, cost]


def _pictures_of(save: Path) -> list[Path]:
    """Where the pictures beside a plan go: the speed-up against gamma, and the cost of a pass."""
    return [save.with_name(f"{save.stem}-{what}.svg") for what in ("speedup", "costs")]


def _threads(args: argparse.Namespace, options: LoadOptions) -> int | None:
    """The fastest number of threads of those to try; None where it makes no difference."""
    from ..bench import tuning
    from ..core.errors import ParameterError
    from ..core.threads import default_threads
    from ..kernels.native import open_library

    cores = default_threads().count
    try:
        counts = (
            [int(n) for n in args.thread_counts.split(",")]
            if args.thread_counts
            else sorted({cores, max(1, cores // 2)})
        )
    except ValueError:
        raise ParameterError(f"--threads takes numbers with commas between them, not {args.thread_counts!r}") from None
    if min(counts) < 1:
        raise ParameterError("--threads must be at least 1")
    if len(counts) == 1 or args.costs:
        return counts[-1] if args.thread_counts else None
    if options.backend == "torch" or open_library() is None:
        return None
    seconds = {}
    for count, costs in tuning.thread_costs(args.target, options, counts):
        seconds[count] = costs.of(4)
        _tell(f"{count} threads: {1e3 * costs.of(1):.1f} ms a row, {1e3 * costs.of(4):.1f} ms four rows")
    return min(seconds, key=seconds.__getitem__)


def _texts(file: str) -> list[str]:
    from ..core.errors import ParameterError

    try:
        lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
        texts = [json.loads(line)["prompt"] if line.startswith("{") else line for line in lines]
    except (OSError, ValueError, KeyError) as error:
        raise ParameterError(f"{file} holds no prompts, one a line or JSON lines with a prompt: {error}") from None
    if not texts:
        raise ParameterError(f"{file} holds no prompts")
    return texts


def _prompt(target: LoadedModel, text: str) -> Prompt:
    return [{"role": "user", "content": text}] if target.chat_template else text


def costs_table(costs: dict[str, PassCosts]) -> str:
    """Milliseconds of a pass by its rows, and relative to one row."""
    lines = []
    for name, one in costs.items():
        cells = [f"{n}: {1e3 * s:.1f} ms (x{s / one.seconds[0]:.2f})"
                 for n, s in zip(one.rows, one.seconds, strict=True)]  # fmt: skip
        lines.append(f"{name}, rows of a pass behind {one.cached} tokens: " + ", ".join(cells))
        lines.append(f"  for each 1000 tokens cached {1e6 * one.per_entry:.1f} ms more, and "
                     f"{1e6 * one.per_entry_row:.1f} for each further row; prefill takes "
                     f"{1e3 * one.per_prompt_token:.1f} ms a token")  # fmt: skip
    return "\n".join(lines)


def ranking(ranked: list[Found]) -> str:
    """A table: ways that are surely faster than plain decoding, plain decoding, the others."""
    from ..bench.summary import spread

    width = max(len("plain"), *(len(one.way.label) for one in ranked))
    lines = [f"{'way':{width}}  {'measured':>30}  predicted  drafts agree  tokens a pass"]
    plain = f"{'plain':{width}}  {'1.00x':>30}"
    if not ranked[0].faster:
        plain += "  nothing is surely faster: it is saved"
    for one in ranked:
        if not one.faster and plain:
            lines.append(plain)
            plain = ""
        if one.error:
            lines.append(f"{one.way.label:{width}}  not possible: {one.error}")
        elif one.measured is None:
            lines.append(f"{one.way.label:{width}}  {'nothing was drafted':>30}")
        else:
            measured = f"{one.measured:.2f}x ({spread(one.ratios)})"
            predicted = "-" if one.predicted is None else f"{one.predicted:.2f}x"
            lines.append(f"{one.way.label:{width}}  {measured:>30}  {predicted:>9}  {one.alpha or 0:>12.0%}  "
                         f"{one.tokens_a_pass or 0:13.2f}")  # fmt: skip
    return "\n".join([*lines, plain] if plain else lines)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
