"""Drafting without a draft of the same vocabulary: the target's own layers, its own weights at 4 bits, and a draft of
another vocabulary. Alpha, c, tokens a pass and speed-up over plain decoding of the same weights, on code and on prose.

    python runs/self_speculation.py [--target NAME --weights bf16 --other NAME --tokens 64 --repeat 1]
        [--ways layer_skip own_keys low_bit reencode intersect] [--without 7,9,10] [--temperature 0]

``own_keys`` is layer_skip with a cache of its own for comparison: it reads the prompt itself. ``--without`` names the
layers that layer_skip leaves out; else its calibration chooses them and prints what it tried. The table goes to
standard output, one JSON line behind it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

import torch

from outpace import Result, SamplingParams, load
from outpace.bench.provenance import provenance
from outpace.catalogue import resolve
from outpace.drafters.layer_skip.choice import choose_layers
from outpace.engine.engine import Engine
from outpace.runtimes.loading import HEAD_IDS, LoadedModel, load_draft, load_model

PROMPTS = {
    "code": "Write a Python function that groups a list of words by their first letter, with a docstring.",
    "prose": "Describe in one paragraph how a glacier shapes the valley that it leaves behind.",
}
GAMMAS = {"layer_skip": 2, "own_keys": 2, "low_bit": 3, "reencode": 3, "intersect": 3}


def main() -> None:
    """Measure every way on every prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--other", default="smollm2-135m", help="the draft of another vocabulary")
    parser.add_argument("--ways", nargs="+", choices=GAMMAS, default=list(GAMMAS))
    parser.add_argument("--without", default="", help="layers that layer_skip leaves out")
    parser.add_argument("--gamma", type=int, help="of every way, instead of its own")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = load_model(resolve(options.target), weights=options.weights, threads=options.threads)
    without = options.without
    if not without and {"layer_skip", "own_keys"} & set(options.ways):
        choice = choose_layers(target, head=HEAD_IDS, tell=lambda line: print(line, file=sys.stderr, flush=True))
        without = ",".join(map(str, choice.left_out))
        print(f"best: {choice}", file=sys.stderr, flush=True)
    models, rows = [target], []
    for way in options.ways:
        engine, draft = open_way(way, target, without, options)
        models += [draft] if draft is not None and draft.path != target.path else []
        for kind, prompt in PROMPTS.items():
            rows.append({"way": way, "prompt": kind, **measure(engine, prompt, options.gamma or GAMMAS[way], options)})
            print(line(rows[-1]), flush=True)
    settings = {"temperature": options.temperature, "tokens": options.tokens, "without": without}
    print(json.dumps({"settings": settings, "rows": rows, "provenance": provenance(models)}))


def open_way(
    way: str, target: LoadedModel, without: str, options: argparse.Namespace
) -> tuple[Engine, LoadedModel | None]:
    """An engine that drafts in this way, and the draft model if it has one."""
    if way == "layer_skip":
        return load(target, drafter="layer_skip", drafter_options={"layer_skip": {"without": without}}), None
    if way == "own_keys":
        kept = [layer for layer in range(target.config.layers) if str(layer) not in without.split(",")]
        draft = dataclasses.replace(target, runtime=target.runtime.with_layers(kept, HEAD_IDS))  # type: ignore[attr-defined]
        return load(target, draft, drafter="draft_model"), draft
    if way == "low_bit":
        return load(target, drafter="low_bit"), None
    other = load_draft(resolve(options.other), threads=options.threads)
    return load(target, other, drafter=way), other


def measure(engine: Engine, prompt: str, gamma: int, options: argparse.Namespace) -> dict[str, object]:
    """Plain and drafted answers by turns; the fastest of each."""
    message = [{"role": "user", "content": prompt}]
    params = SamplingParams(temperature=options.temperature, seed=1, max_tokens=options.tokens, ignore_eos=True)
    engine.measure_costs()
    speeds: dict[int, float] = {}
    for _ in range(options.repeat):
        for drafted in (0, gamma):
            result = engine.generate(message, params, gamma=drafted)
            assert isinstance(result, Result)
            report = result.report
            speeds[drafted] = max(speeds.get(drafted, 0.0), report.tokens_per_second or 0.0)
    if report.warnings:
        raise RuntimeError(report.warnings[0])
    return {
        "gamma": gamma,
        "alpha": report.alpha,
        "c": report.c,
        "tokens_a_pass": report.block_efficiency,
        "predicted": report.predicted_speedup,
        "plain_tokens_per_second": speeds[0],
        "tokens_per_second": speeds[gamma],
        "speedup": speeds[gamma] / speeds[0],
        "seconds_draft_prefill": report.seconds_draft_prefill,
    }


def line(row: dict[str, object]) -> str:
    """One row of the table."""
    return (f"{row['way']:10} {row['prompt']:5} gamma {row['gamma']}  alpha {row['alpha']:.3f}  c {row['c']:.3f}  "
            f"{row['tokens_a_pass']:.2f} tokens a pass  predicted {row['predicted']:.2f}x  "
            f"{row['tokens_per_second']:.2f} against {row['plain_tokens_per_second']:.2f} tokens/s = "
            f"{row['speedup']:.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
