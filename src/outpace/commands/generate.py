"""Answer one prompt.

Without a model named, the qwen2.5-coder pair of the catalogue answers. Where the target has a chat
template, the prompt is its user message; --raw continues the text as it stands.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.types import SamplingParams
    from ..engine.engine import Engine, Prompt, Result

DEFAULT_TARGET = "qwen2.5-coder-1.5b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt's text, without the chat template")
    add_model_arguments(parser)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    sampling.add_argument("--top-k", type=int, default=0, metavar="N", help="keep the N most probable tokens; 0 is off")
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep the smallest set with mass P")
    sampling.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P times the likeliest"
    )
    sampling.add_argument("--seed", type=int, help="the same seed gives the same answer; drawn afresh when left out")
    sampling.add_argument("--max-tokens", type=_limit, default=256, metavar="N", help="tokens at most (256), or none")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop before TEXT; repeatable")
    sampling.add_argument("--ignore-eos", action="store_true", help="go on past the model's end tokens")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--compare", action="store_true", help="also decode plainly, and print both speeds")
    output.add_argument("--repeat", type=int, default=3, metavar="N", help="interleaved runs of --compare (3)")
    output.add_argument("--quiet", action="store_true", help="no summary line after the answer")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that choose the models, the drafter and the rule."""
    from .. import drafters, verify

    group = parser.add_argument_group("models and drafting")
    group.add_argument("--target", metavar="MODEL", help=f"catalogue name, GGUF file or directory ({DEFAULT_TARGET})")
    group.add_argument("--draft", metavar="MODEL", help="the draft model (by default the catalogue's for the target)")
    group.add_argument("--drafter", choices=drafters.names(), help="how to draft (draft_model, or lookup without one)")
    group.add_argument("--gamma", type=int, metavar="N", help="tokens drafted a round, at most; 0 is plain decoding")
    group.add_argument("--accept", choices=verify.names(), default="match", help="acceptance rule (match)")
    kinds = ("auto", "file", "q8", "q4", "bf16", "f32")
    group.add_argument(
        "--weights", choices=kinds, default="auto", help="the target's weights: as in the file, or rounded"
    )
    group.add_argument("--draft-weights", choices=kinds, default="auto", help="the draft's (auto: q4 when it is big)")
    group.add_argument(
        "--draft-head", type=int, metavar="N", help="keep N token ids of the draft's output head; 0: all"
    )
    group.add_argument("--backend", choices=("auto", "native", "torch"), default="auto", help="C kernels, or torch")
    group.add_argument("--context", type=int, metavar="N", help="use at most N tokens of the model's context")
    group.add_argument("--threads", type=int, metavar="N", help="threads to compute with (all cores)")
    for name, field in _drafter_options():
        flag = f"--{name}-{field.name}".replace("_", "-")
        group.add_argument(flag, dest=f"{name}.{field.name}", type=type(field.default), metavar="N", default=None,
                           help=f"option of the {name} drafter (default {field.default})")  # fmt: skip


def _drafter_options() -> list[tuple[str, dataclasses.Field]]:  # type: ignore[type-arg]
    """The fields of every drafter's Config, but for gamma, which has a flag of its own."""
    from .. import drafters

    modules = [(name, drafters.module(name)) for name in drafters.names()]
    return [(n, f) for n, module in modules for f in dataclasses.fields(module.Config) if f.name != "gamma"]


def _limit(text: str) -> int | None:
    """A number of tokens, or "none" for as many as the context holds."""
    try:
        return None if text == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number or none, not {text!r}") from None


def load_engine(args: argparse.Namespace) -> Engine:
    """The engine that the model options ask for."""
    import torch

    from .. import drafters
    from ..core.errors import ParameterError
    from ..engine.build import load
    from ..models import catalogue

    if args.threads is not None:
        if args.threads < 1:
            raise ParameterError(f"--threads must be at least 1, not {args.threads}")
        torch.set_num_threads(args.threads)
    target = args.target or DEFAULT_TARGET
    draft, drafter = args.draft, args.drafter
    wants_draft = drafter is None or drafters.module(drafter).NEEDS_DRAFT
    if draft is None and wants_draft:
        draft = next((entry.draft for entry in catalogue.catalogue() if entry.name == target), None)
    chosen = drafter or ("draft_model" if draft is not None else "lookup")
    options = {}
    for name, field in _drafter_options():
        value = getattr(args, f"{name}.{field.name}")
        if value is None:
            continue
        if name != chosen:
            raise ParameterError(f"--{name}-{field.name.replace('_', '-')} belongs to the drafter {name!r}, "
                                 f"but {chosen!r} is used")  # fmt: skip
        options[field.name] = value
    return load(target, draft, drafter=drafter, gamma=args.gamma, accept=args.accept, weights=args.weights,
                draft_weights=args.draft_weights, draft_head=args.draft_head, backend=args.backend,
                threads=args.threads, context=args.context, options=options)  # fmt: skip


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling options as parameters."""
    from ..core.types import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
    )


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
    engine = load_engine(args)
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
    interrupted, printed = False, 0
    with engine.stream(prompt, params) as stream:
        try:
            for event in stream:
                if not args.json:
                    printed += len(event.text)  # first: Ctrl-C is likeliest just after the reader sees the text
                    print(event.text, end="", flush=True)
        except KeyboardInterrupt:
            interrupted = True
    result = stream.result
    assert result is not None
    if args.json:
        print(json.dumps({"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason,
                          "prompt_tokens": result.prompt_tokens, "report": result.report.as_dict()}))  # fmt: skip
    else:
        print(result.text[printed:])  # after Ctrl-C: the round that it cut short, and what was held back
        if not args.quiet:
            print(summary(result, params.temperature > 0), file=sys.stderr)
    return 130 if interrupted else 0


def _compare(engine: Engine, prompt: Prompt, params: SamplingParams, args: argparse.Namespace) -> int:
    from ..bench.compare import compare

    show = (lambda mode, result: None) if args.json or args.quiet else _show_run
    found = compare(engine, prompt, params, repeats=args.repeat, show=show)
    if args.json:
        print(json.dumps(found.as_dict()))
        return 0
    print(found.speculative.text)
    print(comparison_table(found), file=sys.stderr)
    return 0


def _show_run(mode: str, result: Result) -> None:
    print(f"{mode:>12}: {summary(result)}", file=sys.stderr, flush=True)


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
    plain, fast = found.plain.report, found.speculative.report
    where = found.first_difference
    same = "equal" if where is None else f"differ from token {where} on"
    ratio = "" if found.speedup is None else f"   x{found.speedup:.2f} (median of {len(found.ratios)})"
    lines = [
        f"plain        {plain.tokens_per_second or 0:7.1f} tok/s",
        f"speculative  {fast.tokens_per_second or 0:7.1f} tok/s{ratio}",
        f"tokens       {len(found.speculative.token_ids)}, {same}",
    ]
    if fast.alpha is not None:
        lines.append(f"drafts       {fast.drafter}, gamma {fast.gamma}, alpha {fast.alpha:.2f}, "
                     f"{fast.block_efficiency:.2f} tokens a pass, c {fast.c or 0:.2f}, "
                     f"predicted x{fast.predicted_speedup or 0:.2f}")  # fmt: skip
    return "\n".join([*lines, *fast.warnings])
