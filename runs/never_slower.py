"""Is the controller ever slower than plain decoding, and how near is it to the best fixed setting?

    python runs/never_slower.py collect --data ../shared/data --log LOG   # answers and costs; continues where it was
    python runs/never_slower.py replay --log LOG                          # every setting on the logged rounds
    python runs/never_slower.py check --log LOG                           # simulated against measured speed-ups
    python runs/never_slower.py confirm --data ../shared/data --log OTHER # plain and controller side by side, by the
                                                                          # clock; --answers LOG: and the best setting

`collect` writes one line for each prompt: how long the run of agreeing drafts is at every position of the answer, for
the draft model and for lookup. At temperature 0 (and under `match` in general) that decides exactly what any gamma
would have brought, so `replay` needs no model: it prices the rounds with the passes measured by `collect`.
The prompts are those of a directory (Spec-Bench and HumanEval, one category for each task) and the creative ones below.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outpace import SamplingParams, load
from outpace.bench import workload
from outpace.bench.compare import race
from outpace.bench.simulate import Logged, SimulatedRun, Truth, simulate
from outpace.catalogue import resolve
from outpace.control.controller import AutoController
from outpace.control.pass_costs import PassCosts, from_dict, load_pass_costs, machine, measure_passes
from outpace.core.prefix_cache import shared_length
from outpace.core.types import Chunk
from outpace.drafters.lookup import Config, Lookup
from outpace.engine.engine import Engine
from outpace.engine.prompts import Prompt
from outpace.engine.stream import Result
from outpace.runtimes.loading import LoadedModel, load_draft, load_model

CREATIVE = (
    "Write the opening of a story in which a lighthouse keeper finds a door at the bottom of the sea.",
    "Write a poem of three stanzas about the last tram of the night, without rhymes.",
    "Describe a market on the moon as an old fishmonger would tell it to her grandchild.",
    "Invent a festival for a village that celebrates the wind, and tell how it began.",
    "Write a letter from a retired clock to the town that forgot to wind it.",
    "Tell a ghost story in which the ghost is the only one who is afraid.",
    "Write a monologue of a violin that has been played by five owners.",
    "Imagine a recipe for bottled thunder and write it down with all its warnings.",
    "Write a short dialogue between two rivers that are about to meet.",
    "Describe the smell of rain to somebody who has lived all their life in the desert.",
)
OTHER, DRAW = 0.0006, 0.0006  # seconds of a round besides passes, and of drawing a draft's token from its pass
FEW = (1, 2, 3, 4, 6, 8)  # rows of the passes that `check` measures
GAMMAS = {"draft_model": range(1, 13), "lookup": (2, 4, 6, 8, 12, 16)}


def mix(data: Path, each: int) -> Iterator[tuple[str, str]]:
    """(category, prompt), the categories in turn, so that a run that is cut short has some of all."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for line in (data / "spec_bench_60.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kinds[entry["task"]].append(entry["prompt"])
    for line in (data / "humaneval_40.jsonl").read_text(encoding="utf-8").splitlines():
        kinds["code"].append(json.loads(line)["prompt"])
    kinds["creative"] = list(CREATIVE)
    for prompts in kinds.values():
        prompts.sort(key=len)  # the shorter ones: a long prompt's time says little about decoding
    for i in range(each):
        yield from ((kind, prompts[i]) for kind, prompts in kinds.items() if i < len(prompts))


def prompts(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Those of the mix, and of the built-in categories asked for."""
    built_in = [one for one in workload.load_prompts("built-in", 3) if one.category in args.built_in.split(",")]
    return [*mix(args.data, args.each), *((f"built-in {one.category}", one.text) for one in built_in)]


def asked(target: LoadedModel, prompt: str) -> Prompt:
    """A prompt as the model is asked it."""
    return [{"role": "user", "content": prompt}] if target.chat_template else prompt


def collect(args: argparse.Namespace) -> None:
    start, log = perf_counter(), Path(args.log)
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {entry.get("prompt") for entry in done}
    todo = [(kind, prompt) for kind, prompt in prompts(args) if prompt not in known]
    target = load_model(resolve(args.target), weights=args.weights)
    draft = load_draft(resolve(args.draft))
    engine = load(target, draft, gamma=4)
    other = engine.encode(asked(target, "-"))
    with log.open("a", encoding="utf-8") as out:
        if not done:
            costs = {"target": asdict(load_pass_costs(target)), "draft": asdict(load_pass_costs(draft))}
            print(
                json.dumps(costs | {"machine": machine(), "pair": [args.target, args.draft, target.weights]}), file=out
            )
        for kind, prompt in todo:
            if perf_counter() - start > args.seconds:
                print(f"{len(todo)} to do; call again", file=sys.stderr)
                return
            ids = engine.encode(asked(target, prompt))
            if len(ids) + args.tokens > target.runtime.context:
                continue
            result = engine.generate(ids, SamplingParams(max_tokens=args.tokens))
            assert isinstance(result, Result)
            text = [*ids, *result.token_ids]
            template = shared_length(ids[:-1], other)  # the template's beginning, which servers keep
            entry = {"kind": kind, "prompt": prompt, "prompt_tokens": len(ids), "known": template,
                     "tokens": len(result.token_ids), "limit": args.tokens,
                     "draft_model": model_runs(engine, text, len(ids)),
                     "lookup": lookup_runs(text, len(ids))}  # fmt: skip
            print(json.dumps(entry), file=out, flush=True)
            print(f"{perf_counter() - start:6.1f} s  {kind}: {len(ids)} + {len(result.token_ids)}", file=sys.stderr)


def model_runs(engine: Engine, text: list[int], first: int) -> dict[str, list[int]]:
    """At each position of the answer: how many greedy drafts in a row would be right. A draft that was right so
    far is the text itself, so one pass of the draft over the text answers for all positions."""
    runtime = engine._drafters["draft_model"]._runtime  # type: ignore[attr-defined]
    cache = runtime.new_cache()
    slot = cache.open(len(text))
    [logits] = runtime.forward([Chunk(slot, text[:-1], logits_from=first - 1)], cache).logits
    right = (logits.argmax(-1) == torch.tensor(text[first:])).tolist()
    runs = [0] * (len(right) + 1)
    for i in reversed(range(len(right))):
        runs[i] = runs[i + 1] + 1 if right[i] else 0
    return {"proposed": [99] * len(right), "accepted": runs[:-1]}


def lookup_runs(text: list[int], first: int) -> dict[str, list[Any]]:
    """At each position of the answer: what lookup proposes, how much of it is right, and what it expected."""
    from outpace.audit.drive import session

    drafter, one = Lookup(Config()), session(count=len(text), gamma=16, prompt=text[:first])
    drafter.begin(one)
    proposed, accepted, chances = [], [], []
    for position in range(first, len(text)):
        one.tokens = text[:position]
        [proposal] = drafter.propose([one], [16])
        agree = [a == b for a, b in zip(proposal.tokens, text[position:], strict=False)]
        proposed.append(len(proposal))
        accepted.append(next((i for i, same in enumerate(agree) if not same), len(agree)))
        chances.append([round(chance, 3) for chance in drafter.forecast(one, 16)])
    return {"proposed": proposed, "accepted": accepted, "chances": chances}


def read(log: str) -> tuple[Truth, PassCosts, PassCosts, list[dict[str, Any]], dict[str, Any]]:
    head, *entries = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    target, draft = from_dict(head["target"]), from_dict(head["draft"])
    return Truth(target, {"draft_model": draft}, OTHER, DRAW), target, draft, entries, head


def replayed(truth: Truth, names: Sequence[str], entry: dict[str, Any], **how: Any) -> SimulatedRun:
    """A logged answer, decoded otherwise."""
    drafts = {name: Logged(**entry[name]) for name in names}
    parts = {"prompt": entry["prompt_tokens"], "limit": entry["limit"], "known": entry["known"]}
    return simulate(drafts, truth, entry["tokens"], **parts, **how)


def fixed_settings(
    truth: Truth, names: Sequence[str], entries: Sequence[dict[str, Any]]
) -> dict[tuple[str, int], float]:
    """Seconds of all these answers with every drafter and gamma, the fastest first."""
    found = {("plain", 0): sum(replayed(truth, names, entry, gamma=0).seconds for entry in entries)}
    for name in names:
        for gamma in GAMMAS[name]:
            each = (replayed(truth, names, entry, drafter=name, gamma=gamma).seconds for entry in entries)
            found[name, gamma] = sum(each)
    return dict(sorted(found.items(), key=lambda one: one[1]))


def replay(args: argparse.Namespace) -> None:
    truth, target, draft, entries, head = read(args.log)
    names = args.drafters.split(",")
    print(f"{head['pair']} on {head['machine']}: {len(entries)} answers; v(2), v(4), v(8) = "
          f"{target.relative(2):.2f}, {target.relative(4):.2f}, {target.relative(8):.2f}, "
          f"c = {draft.of(1) / target.of(1):.2f}")  # fmt: skip
    run = partial(replayed, truth, names)
    kinds = sorted({entry["kind"] for entry in entries})
    print(f"{'category':>15} {'answers':>7} {'best fixed':>17} {'x plain':>8} | one controller {'of best':>8} "
          f"{'first token':>11} | one each {'of best':>8}")  # fmt: skip
    warm, cold = defaultdict(list), defaultdict(list)  # by kind: (entry, outcome)
    for seed in range(args.orders):
        order = list(entries)
        random.Random(seed).shuffle(order)
        shared, rng = AutoController(target, {"draft_model": draft}, clock=lambda: 0.0), random.Random(seed)
        noise = lambda: rng.lognormvariate(0, args.noise)  # noqa: B023, E731
        for number, entry in enumerate(order):
            warm[entry["kind"]].append((entry, run(entry, controller=shared, number=number, noise=noise)))
            alone = AutoController(target, {"draft_model": draft}, clock=lambda: 0.0)
            cold[entry["kind"]].append((entry, run(entry, controller=alone, noise=noise)))
    for kind in kinds:
        mine = [entry for entry in entries if entry["kind"] == kind]
        plain = {id(entry): run(entry, gamma=0) for entry in mine}
        fixed = fixed_settings(truth, names, mine)
        best, total = next(iter(fixed)), fixed["plain", 0]
        columns = []
        for runs in (warm[kind], cold[kind]):
            seconds = sum(outcome.seconds for _, outcome in runs) / args.orders
            ratio = statistics.median(plain[id(e)].seconds / o.seconds for e, o in runs)
            first = statistics.median(plain[id(e)].first / o.first for e, o in runs)
            columns.append((total / seconds, ratio, fixed[best] / seconds, first))
        (w, wm, wb, wf), (c, cm, cb, _) = columns
        print(f"{kind:>15} {len(mine):7} {best[0]:>13} {best[1]:3} {total / fixed[best]:7.2f}x | "
              f"{w:5.2f}x ({wm:5.2f}x) {wb:8.1%} {wf:10.3f}x | {c:4.2f}x ({cm:4.2f}x) {cb:6.1%}")  # fmt: skip


def check(args: argparse.Namespace) -> None:
    """Decode logged prompts plainly and with fixed gammas, side by side, and compare with what the simulator makes of
    their logs, on costs measured right before and after."""
    start = perf_counter()
    *_, entries, _ = read(args.log)
    target, draft = load_model(resolve(args.target), weights=args.weights), load_draft(resolve(args.draft))
    engines = {"plain": load(target, drafter="none"), "drafting": load(target, draft, controller="fixed")}
    for engine in engines.values():
        engine.generate("warm up", SamplingParams(max_tokens=8))
    off, cost_model = [], [measure_passes(model.runtime, rows=FEW) for model in (target, draft)]
    for entry in sorted(entries, key=lambda entry: entry["prompt_tokens"] - 2 * entry["tokens"]):
        if perf_counter() - start > args.seconds:
            break
        params, found = SamplingParams(max_tokens=entry["limit"]), {}
        for gamma in (2, 4):
            found[gamma] = race(engines, asked(target, entry["prompt"]), params, {"drafting": gamma})
            assert len(found[gamma]["drafting"].result.token_ids) == entry["tokens"]
        before, cost_model = cost_model, [measure_passes(model.runtime, rows=FEW) for model in (target, draft)]
        costs, drafts = (between(*pair) for pair in zip(before, cost_model, strict=True))
        truth = Truth(costs, {"draft_model": drafts}, OTHER, DRAW)
        for gamma, raced in found.items():
            decoding = {name: one.result.report.seconds_decode for name, one in raced.items()}
            measured = decoding["plain"] / decoding["drafting"]
            simulated = simulated_decoding(entry, truth, 0) / simulated_decoding(entry, truth, gamma)
            off.append(simulated / measured - 1)
            print(f"{entry['kind']:>15} gamma {gamma}: measured {measured:.2f}x, simulated {simulated:.2f}x "
                  f"({off[-1]:+.1%})", flush=True)  # fmt: skip
    print(f"median difference {statistics.median(off):+.1%}, of the size {statistics.median(map(abs, off)):.1%}")


def between(before: PassCosts, after: PassCosts) -> PassCosts:
    """What passes cost between two measurements."""
    seconds = tuple((a + b) / 2 for a, b in zip(before.seconds, after.seconds, strict=True))
    return replace(before, seconds=seconds)


def simulated_decoding(entry: dict[str, Any], truth: Truth, gamma: int) -> float:
    """Seconds that the draft model's log of an answer comes to, reading apart."""
    prompt, drafts = entry["prompt_tokens"], {"draft_model": Logged(**entry["draft_model"])}
    reading = truth.reading("draft_model", prompt) if gamma else 0.0
    found = simulate(drafts, truth, entry["tokens"], prompt=prompt, gamma=gamma)
    return found.seconds - truth.prefill(prompt) - reading


def confirm(args: argparse.Namespace) -> None:
    """Plain, controller and, with a log of answers, each category's best fixed setting side by side."""
    start, names, best = perf_counter(), args.drafters.split(","), {}
    if args.answers:
        truth, *_, entries, _ = read(args.answers)
        for kind in {entry["kind"] for entry in entries}:
            mine = [entry for entry in entries if entry["kind"] == kind]
            best[kind] = next(iter(fixed_settings(truth, names, mine)))
    target, draft = load_model(resolve(args.target), weights=args.weights), load_draft(resolve(args.draft))
    keeping = partial(load, target, prefix_bytes=64 << 20)
    engines = {
        "plain": keeping(drafter="none"),
        "auto": keeping(draft, drafter=args.drafters, controller="auto"),
    }
    engines |= {
        name: keeping(draft if name == "draft_model" else None, drafter=name, controller="fixed")
        for name in names
        if best
    }
    for engine in engines.values():
        engine.generate("warm up", SamplingParams(max_tokens=8))
    params = SamplingParams(max_tokens=args.tokens)
    for number, (kind, prompt) in enumerate(prompts(args)[args.skip :]):
        if perf_counter() - start > args.seconds:
            print(f"stopped before prompt {number + args.skip}", file=sys.stderr)
            break
        running, gamma = {"plain": engines["plain"], "auto": engines["auto"]}, {}
        name, depth = best.get(kind, ("plain", 0))
        if depth:
            running[name], gamma[name] = engines[name], depth
        order = random.Random(number).sample(list(running.items()), len(running))  # nobody is always the first
        found = race(dict(order), asked(target, prompt), params, gamma)
        assert all(one.result.token_ids == found["plain"].result.token_ids for one in found.values())
        line: dict[str, Any] = {name: (found[name].seconds, found[name].first) for name in ("plain", "auto")}
        line |= {"kind": kind, "tokens": len(found["auto"].result.token_ids),
                 "prompt": found["auto"].result.prompt_tokens}  # fmt: skip
        if best:
            line |= {"best": (found[name].seconds, found[name].first), "setting": f"{name} {depth}"}
        with Path(args.log).open("a", encoding="utf-8") as log:
            print(json.dumps(line), file=log)
        ratios = [line["plain"][part] / line["auto"][part] for part in (0, 1)]
        print(f"{kind:>15} {ratios[0]:.2f}x  first token {ratios[1]:.2f}x  {line['tokens']} tokens", file=sys.stderr)
    summarize(args.log)


def summarize(log: str) -> None:
    """Medians of the paired ratios, with a bootstrap interval; and what the best fixed setting takes / the controller
    takes for all of a category's requests."""
    entries = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    kinds = sorted({entry["kind"] for entry in entries})
    for kind in [*kinds, "all"]:
        mine = [entry for entry in entries if kind in (entry["kind"], "all")]
        for name, part in (("request", 0), ("first token", 1)):
            ratios = [entry["plain"][part] / entry["auto"][part] for entry in mine]
            low, high = bootstrap(ratios)
            print(f"{kind:>15} {name:>12}: {statistics.median(ratios):.3f}x  [{low:.3f}, {high:.3f}]  of {len(ratios)}")
        both = [entry for entry in mine if "best" in entry]
        if both:
            plain, auto, best = (sum(entry[name][0] for entry in both) for name in ("plain", "auto", "best"))
            ratios = [entry["best"][0] / entry["auto"][0] for entry in both]
            low, high = bootstrap(ratios)
            settings = ", ".join(sorted({entry["setting"] for entry in both})) if kind != "all" else "of each"
            print(
                f"{kind:>15}   best fixed: {plain / best:.2f}x ({settings}), controller {plain / auto:.2f}x, "
                f"{best / auto:.1%} of it; by request {statistics.median(ratios):.1%} [{low:.1%}, {high:.1%}]"
            )


def bootstrap(values: list[float], times: int = 2000, seed: int = 0) -> tuple[float, float]:
    """A 95% interval of the median."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(times))
    return medians[int(0.025 * times)], medians[int(0.975 * times) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("collect", "replay", "check", "confirm", "summarize"))
    parser.add_argument("--log", required=True)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--drafters", default="draft_model,lookup")
    parser.add_argument("--each", type=int, default=3, help="prompts of each category")
    parser.add_argument("--built-in", default="", metavar="NAME,NAME", help="categories of outpace bench besides")
    parser.add_argument(
        "--answers", metavar="LOG", help="for confirm: a log of collect, to find the best fixed settings"
    )
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=75.0, help="begin no prompt after so long")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--orders", type=int, default=8, help="random orders of the requests")
    parser.add_argument("--noise", type=float, default=0.05, help="of the clock in replays")
    args = parser.parse_args()
    if args.action == "summarize":
        summarize(args.log)
    else:
        {"collect": collect, "replay": replay, "check": check, "confirm": confirm}[args.action](args)


if __name__ == "__main__":
    main()
