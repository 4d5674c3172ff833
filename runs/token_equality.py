"""Is every token what plain decoding says, and every logit behind it the same bits, on real models?

    python runs/token_equality.py --prompts ../shared/data/humaneval_40.jsonl --log LOG   # goes on where it was

For each prompt: gamma 1 to 8, alone and four at a time, temperatures 0 and 1, against plain decoding of that prompt
alone with the same seed. Of every token the log-probabilities of the five likeliest are compared as numbers, without
tolerance: they change when a logit changes by a bit that matters to any of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from outpace import SamplingParams, load
from outpace.engine.engine import Engine
from outpace.engine.stream import Result

GAMMAS, TEMPERATURES, BATCH = range(1, 9), (0.0, 1.0), 4


def answers(engine: Engine, prompts: Sequence[list[int]], params: Sequence[SamplingParams], gamma: int) -> list[Result]:
    results = engine.generate(list(prompts), list(params), gamma=gamma)
    assert isinstance(results, list)
    return results


def check(engine: Engine, prompts: Sequence[list[int]], first: int, tokens: int) -> dict[str, int]:
    """Compare the answers of up to four prompts, the first of which is number ``first``."""
    counts = {"answers": 0, "tokens": 0, "accepted": 0, "other tokens": 0, "other logits": 0}
    for temperature in TEMPERATURES:
        params = [
            SamplingParams(temperature=temperature, seed=first + i, max_tokens=tokens, ignore_eos=True, logprobs=5)
            for i in range(len(prompts))
        ]
        alone = [answers(engine, [p], [q], 0)[0] for p, q in zip(prompts, params, strict=True)]
        for gamma in GAMMAS:
            found = [answers(engine, [p], [q], gamma)[0] for p, q in zip(prompts, params, strict=True)]
            found += answers(engine, prompts, params, gamma)
            for result, plain in zip(found, [*alone, *alone], strict=True):
                counts["answers"] += 1
                counts["tokens"] += len(result.token_ids)
                counts["accepted"] += result.report.accepted
                counts["other tokens"] += result.token_ids != plain.token_ids
                counts["other logits"] += result.logprobs != plain.logprobs
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with a prompt each")
    parser.add_argument("--log", type=Path, required=True, help="JSON lines, one for each four prompts")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--drafter", default="draft_model")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--limit", type=int, default=40, help="prompts")
    parser.add_argument("--tokens", type=int, default=12, help="of each answer")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after so long")
    args = parser.parse_args()
    start = perf_counter()
    lines = args.prompts.read_text(encoding="utf-8").splitlines()[: args.limit]
    done = [json.loads(line) for line in args.log.read_text().splitlines()] if args.log.exists() else []
    engine = load(args.target, args.draft, drafter=args.drafter, controller="fixed", weights=args.weights,
                  max_batch=BATCH, prefix_bytes=1 << 30)  # fmt: skip
    for first in range(BATCH * len(done), len(lines), BATCH):
        if perf_counter() - start > args.seconds:
            print(f"stopped before prompt {first}; call again", file=sys.stderr)
            break
        prompts = [engine.encode(json.loads(line)["prompt"]) for line in lines[first : first + BATCH]]
        done.append({"first": first, **check(engine, prompts, first, args.tokens)})
        with args.log.open("a", encoding="utf-8") as log:
            print(json.dumps(done[-1]), file=log)
        print(f"{perf_counter() - start:6.0f} s  {done[-1]}", file=sys.stderr, flush=True)
    total = {name: sum(entry[name] for entry in done) for name in done[0] if name != "first"} if done else {}
    print(json.dumps(total))
    return int(bool(total.get("other tokens") or total.get("other logits")))


if __name__ == "__main__":
    sys.exit(main())
