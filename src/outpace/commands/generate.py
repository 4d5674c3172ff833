"""Answer one prompt.

Without a model named, the qwen2.5-coder pair of the catalogue answers. Where the target has a chat
template, the prompt is its user message; --raw continues the text as it stands.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from ._models import add_model_arguments, load_from
from ._sampling import add_sampling_arguments, sampling_params
from ._terminal import events, interrupts, legend, painted, safe_for

if TYPE_CHECKING:
    from ..core.types import SamplingParams
    from ..engine.engine import Engine
    from ..engine.prompts import Prompt
    from ..engine.stream import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt, behind -- if it begins with -; "
                        "- alone reads it from standard input")  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt's text, without the chat template")
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--compare", action="store_true", help="also decode plainly, and print both speeds")
    output.add_argument("--repeat", type=int, default=3, metavar="N", help="interleaved runs of --compare (3)")
    output.add_argument("--show", action="store_true", help="colour each token by how it came, with a legend")
    output.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colours of --show "
                        "(auto: on a terminal)")  # fmt: skip
    output.add_argument("--explain", action="store_true", help="say why it was fast or slow")
    output.add_argument("--quiet", action="store_true", help="no summary line after the answer")


def run(args: argparse.Namespace) -> int:
    """Generate and print. Ctrl-C prints what there is and ends with 130."""
    from ..core.errors import ParameterError

    text = _read_input() if args.prompt == "-" or (args.prompt is None and not sys.stdin.isatty()) else args.prompt
    if text is None:
        raise ParameterError("no prompt: give it as an argument, or - to read standard input")
    if not text:
        raise ParameterError("the prompt is empty")
    if args.repeat < 1:
        raise ParameterError(f"--repeat must be at least 1, not {args.repeat}")
    params = sampling_params(args)  # before minutes are spent on loading
    engine = load_from(args)
    if args.explain:
        engine.measure_costs()
    prompt: Prompt = text
    if engine.target.chat_template and not args.raw:
        system = [{"role": "system", "content": args.system}] if args.system else []
        prompt = [*system, {"role": "user", "content": text}]
    elif args.system:
        raise ParameterError("--system needs a chat template, and --raw or this model leaves it out")
    return _compare(engine, prompt, params, args) if args.compare else _generate(engine, prompt, params, args)


def _read_input() -> str:
    from ..core.errors import ParameterError

    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ParameterError(f"the prompt on standard input is not {error.encoding}: {error.reason}") from None


def _generate(engine: Engine, prompt: Prompt, params: SamplingParams, args: argparse.Namespace) -> int:
    colours = args.show and (args.color == "always" or (args.color == "auto" and sys.stdout.isatty()))
    if colours and not args.json:
        print(legend(), file=sys.stderr)
    safe = safe_for(sys.stdout)
    with interrupts() as asked, engine.stream(prompt, params) as stream:
        for event in events(engine, stream, asked):
            if not args.json:
                text = painted(engine.target.tokenizer, event, safe) if colours else safe(event.text)
                print(text, end="", flush=True)
    result = stream.result
    assert result is not None
    if args.json:
        print(json.dumps({"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason,
                          "prompt_tokens": result.prompt_tokens, "report": result.report.as_dict()}))  # fmt: skip
    else:
        print()
        if not args.quiet:
            _tell(summary(result, params.temperature > 0))
        if args.explain:
            from ..core.threads import ThreadChoice, default_threads
            from ..engine.explain import explain

            threads = ThreadChoice(args.threads, "--threads") if args.threads else default_threads()
            lines = [*explain(result.report, result.origins), f"Computed with {threads}."]
            _tell("\n".join(lines))
    return 130 if result.finish_reason == "cancelled" else 0


def _compare(engine: Engine, prompt: Prompt, params: SamplingParams, args: argparse.Namespace) -> int:
    from ..bench.compare import compare

    show = (lambda mode, result: None) if args.json or args.quiet else _show_run
    found = compare(engine, prompt, params, repeats=args.repeat, show=show)
    if args.json:
        print(json.dumps(found.as_dict()))
        return 0
    print(safe_for(sys.stdout)(found.speculative.text))
    _tell(comparison_table(found))
    return 0


def _show_run(mode: str, result: Result) -> None:
    _tell(f"{mode:>12}: {summary(result)}")


def _tell(text: str) -> None:
    print(safe_for(sys.stderr)(text), file=sys.stderr, flush=True)


def summary(result: Result, sampled: bool = False) -> str:
    """One line on what a generation took and what drafting brought; with its seed when it was ``sampled``."""
    report = result.report
    drafter = "plain" if report.drafter == "none" else report.drafter
    parts = [drafter, f"{report.emitted} tokens in {report.seconds_decode:.2f} s"]
    if report.tokens_per_second:
        parts.append(f"{report.tokens_per_second:.1f} tok/s")
    if report.alpha is not None and report.block_efficiency is not None:
        parts.append(f"{report.block_efficiency:.2f} tokens a pass")
        parts.append(f"drafts agree {report.alpha:.0%}")
    parts.append(
        f"prompt {result.prompt_tokens} tokens in {report.seconds_prefill + report.seconds_draft_prefill:.2f} s"
    )
    parts.append(f"finish {result.finish_reason}")
    if sampled:
        parts.append(f"seed {report.seed}")
    return " · ".join(parts + report.warnings)


def comparison_table(found) -> str:  # type: ignore[no-untyped-def]  # bench.compare.Comparison, imported late
    """Both speeds, the ratio, and whether the answers are the same."""
    from ..bench.summary import spread

    plain, fast = found.plain.report, found.speculative.report
    where = found.first_difference
    same = "equal" if where is None else f"differ from token {where} on"
    ratio = "" if found.speedup is None else f"   x{found.speedup:.2f} ({spread(found.ratios)})"
    lines = [
        f"plain        {plain.tokens_per_second or 0:7.1f} tok/s",
        f"speculative  {fast.tokens_per_second or 0:7.1f} tok/s{ratio}",
        f"tokens       {len(found.speculative.token_ids)}, {same}",
    ]
    if fast.alpha is not None:
        predicted = "" if fast.c is None else f", c {fast.c:.2f}, predicted x{fast.predicted_speedup or 0:.2f}"
        lines.append(f"drafts       {fast.drafter}, gamma {fast.gamma}, alpha {fast.alpha:.2f}, "
                     f"{fast.block_efficiency:.2f} tokens a pass{predicted}")  # fmt: skip
    elif fast.drafter != "none":
        lines.append(f"drafts       {fast.drafter} drafted nothing here, so there is no gain to measure")
    return "\n".join([*lines, *fast.warnings])
