"""When does a tree beat a chain? Block efficiency at equal row budget, and the speed that measured costs predict.

    python runs/tree_or_chain.py measure --target qwen2.5-coder-1.5b --weights bf16   # needs a quiet machine, ~1 minute
    python runs/tree_or_chain.py table                                             # the draft alone; can be slow

``measure`` lets the target answer some prompts plainly, greedy and at temperature 1, and times passes of target and
draft by their rows. Under ``match`` the output is that text whatever is drafted, so ``table`` needs no target: it
drafts along the text and counts rounds. A round costs a target pass over its rows and the draft's passes over theirs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from outpace import verify
from outpace.catalogue import resolve
from outpace.control.pass_costs import measure_passes
from outpace.core.protocols import Drafter, Request, Runtime, Session
from outpace.core.types import Chunk, Forward, SamplingParams, Verdict
from outpace.drafters.draft_model import DraftModel
from outpace.drafters.draft_tree import Config, DraftTree
from outpace.engine.build import load
from outpace.kernels.native import open_library
from outpace.kernels.sampling import Sampler
from outpace.runtimes.loading import load_draft, load_model
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource

PROMPTS = {
    "code": "Write a Python function that merges two sorted lists into one sorted list. Only the code.",
    "prose": "Explain in a few sentences why the sky is blue in the day and red in the evening.",
}
ROWS = (1, 2, 3, 4, 6, 8)
SEED = 1
CHAINS = [2, 3, 4, 5, 7]
TREES = [
    (3, 2, 1, 3),
    (5, 3, 1, 3),
    (5, 4, 1, 3),
    (7, 4, 1, 3),
    (7, 5, 1, 3),
    (7, 4, 2, 3),
]  # nodes, depth, width, children


def measure(args: argparse.Namespace) -> None:
    target = load_model(resolve(args.target), weights=args.weights)
    draft = load_draft(resolve(args.draft), weights=args.draft_weights)
    engine = load(target, drafter="none")
    texts: list[dict[str, Any]] = []
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS.values()]
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=SEED, max_tokens=args.tokens, ignore_eos=True)
        for name, result, chat in zip(PROMPTS, engine.generate(chats, params), chats, strict=True):
            prompt = engine.encode(chat)
            texts.append({"name": name, "temperature": temperature, "prompt": prompt, "tokens": result.token_ids})
            print(f"{name}, T {temperature:g}: {len(result.token_ids)} tokens", flush=True)
    costs = {
        name: measure_passes(one.runtime, rows=ROWS).by_rows for name, one in (("target", target), ("draft", draft))
    }
    found = {"target": args.target, "weights": target.weights, "draft": args.draft, "draft_weights": args.draft_weights,
             "threads": torch.get_num_threads(), "costs": costs, "texts": texts}  # fmt: skip
    args.work.parent.mkdir(parents=True, exist_ok=True)
    args.work.write_text(json.dumps(found))
    for name, seconds in costs.items():
        print(name, {rows: round(1e3 * value, 1) for rows, value in seconds.items()}, "ms")


class Counted:
    """A runtime that notes the rows of its passes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.rows = runtime, []
        self.vocab_size, self.context = runtime.vocab_size, runtime.context
        self.capabilities, self.new_cache = runtime.capabilities, runtime.new_cache

    def forward(self, chunks: Sequence[Chunk], cache: Any, want: Sequence[str] = ()) -> Forward:
        self.rows.append(sum(len(chunk.tokens) for chunk in chunks))
        return self._runtime.forward(chunks, cache, want)


def follow(drafter: Drafter, runtime: Counted, text: dict[str, Any], budget: int) -> tuple[int, list[int], list[int]]:
    """Draft along a text: tokens said, target rows of each round, and rows of all draft passes but the prompt's."""
    library = open_library()
    params = SamplingParams(temperature=text["temperature"], seed=SEED)
    rng = KeyedRandomSource(SEED, sampler=Sampler(library) if library else None)
    prompt, tokens, count = text["prompt"], text["tokens"], len(text["prompt"])
    one = Session(0, Request(count, count + len(tokens) + 64, params), list(prompt), Pipeline(params), rng)
    one.rule = verify.rule("match")
    drafter.begin(one)
    targets: list[int] = []
    drafts: list[int] = []
    while (said := len(one.tokens) - count) < len(tokens):
        runtime.rows = []
        [proposal] = drafter.propose([one], [budget])
        drafts += runtime.rows if targets else [1] * len(runtime.rows[-1:])
        path: list[int] = []
        while said + len(path) < len(tokens):
            children = proposal.children(path[-1] if path else -1)
            wanted = tokens[said + len(path)]
            child = next((c for c in children if proposal.tokens[c] == wanted), None)
            if child is None:
                break
            path.append(child)
        one.tokens += tokens[said : said + len(path) + 1]
        targets.append(1 + len(proposal))
        drafter.observe([one], [Verdict(path, one.tokens[-1], "bonus")], [Forward([])])
    drafter.end(one)
    return len(tokens), targets, drafts


def seconds(costs: dict[str, float], rows: int) -> float:
    """A pass over ``rows``, between the measured ones on a straight line."""
    known = sorted((int(n), value) for n, value in costs.items())
    above = next((pair for pair in known if pair[0] >= rows), known[-1])
    below = [pair for pair in known if pair[0] <= rows][-1]
    if above[0] == below[0]:
        return above[1] * max(1.0, rows / above[0])
    return below[1] + (above[1] - below[1]) * (rows - below[0]) / (above[0] - below[0])


def table(args: argparse.Namespace) -> None:
    found = json.loads(args.work.read_text())
    draft = Counted(load_draft(resolve(found["draft"]), weights=found["draft_weights"]).runtime)
    target_costs, draft_costs = found["costs"]["target"], found["costs"]["draft"]
    shapes: list[tuple[str, int, Any]] = [(f"chain of {n}", n, lambda: DraftModel(draft)) for n in CHAINS]
    for nodes, depth, width, children in TREES:
        config = Config(gamma=nodes, depth=depth, width=width, children=children)
        name = f"tree, {nodes} nodes, depth {depth}, width {width}"
        shapes.append((name, nodes, lambda config=config: DraftTree(draft, config)))  # type: ignore[misc]
    print(f"{found['target']} at {found['weights']}, draft {found['draft']}; speed: predicted tokens/s over plain")
    print(
        "| draft | rows | "
        + " | ".join(f"{t['name']} T {t['temperature']:g}: tokens a pass, speed" for t in found["texts"])
        + " |"
    )
    print("|---|---|" + "---|" * len(found["texts"]))
    for name, nodes, make in shapes:
        cells = []
        for text in found["texts"]:
            emitted, targets, drafts = follow(make(), draft, text, nodes)
            cost = sum(seconds(target_costs, n) for n in targets) + sum(seconds(draft_costs, n) for n in drafts)
            speed = emitted * seconds(target_costs, 1) / cost
            cells.append(f"{emitted / len(targets):.2f}, {speed:.2f}x")
        print(f"| {name} | {nodes + 1} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--draft-weights", default="auto")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--work", type=Path, default=Path("build/tree_or_chain.json"))
    args = parser.parse_args()
    (measure if args.what == "measure" else table)(args)


if __name__ == "__main__":
    main()
