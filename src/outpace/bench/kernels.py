"""``python -m outpace.bench.kernels``: what passes cost on a real model, against the bars that were set for them.

Each kind of weights is loaded, measured and let go. Figures go into a JSON file, a section for each kind of weights
with its own provenance, and into a page written from it.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from ..catalogue import resolve
from ..control.pass_costs import measure_passes
from ..core.errors import OutpaceError, PeerError
from ..core.threads import default_threads
from ..core.types import Chunk
from ..runtimes.loading import LoadedModel, load_draft, load_model
from .contenders import PLAIN_MODE, Other
from .probe import Bandwidth, prefill_seconds
from .provenance import provenance, write_atomically
from .speculation import GAINS, gains_page, measure_gains, measure_peers, peers_page
from .tables import markdown, verdict

ROWS = (1, 2, 4, 6, 8, 16)
CACHED = 512
BARS: dict[str, dict[int, float]] = {"file": {6: 1.9, 16: 4.5}, "q8": {6: 1.35}, "bf16": {6: 1.35}}  # v(n), at most
REACH = {"file": 1.30, "q8": 1.20, "bf16": 1.20}  # one row / the time that reading takes, at most
PARTS = ("rows", "draft", "speculation", "llama_cpp", "peers")
_SECONDS = 1.0  # of measuring passes, for each repeat
DRAFT_BAR = 0.28  # a draft step / a one-row pass of the file's own weights, at most


def measure_model(model: LoadedModel, repeats: int) -> dict[str, Any]:
    """Seconds of passes behind 512 entries, of one row in turns with the reading of memory, and of a prompt of 512
    tokens."""
    rows = measure_passes(model.runtime, rows=ROWS, cached=CACHED, limit_seconds=repeats * _SECONDS).by_rows
    probe = Bandwidth(threads=getattr(model.runtime, "threads", None))
    one_row, bandwidth = probe.beside(model.runtime, cached=CACHED, repeats=3 * repeats)
    prefill = prefill_seconds(model.runtime, CACHED, repeats=2)
    return {"rows": rows, "prefill": prefill, "bytes": model.nbytes, "one_row": one_row, "bandwidth": bandwidth,
            "provenance": provenance([model])}  # fmt: skip


def measure_draft(target: LoadedModel, draft: LoadedModel, repeats: int) -> dict[str, Any]:
    """A draft step beside a one-row pass of the target, in three turns."""
    times: dict[str, list[float]] = {"target": [], "draft": []}
    for _ in range(3):
        for name, model in (("target", target), ("draft", draft)):
            costs = measure_passes(model.runtime, rows=(1, 2), limit_seconds=repeats * _SECONDS / 6)
            times[name].append(costs.of(1))
    middle = {name: sorted(found)[1] for name, found in times.items()}
    return middle | {"bytes": draft.nbytes, "weights": draft.weights, "provenance": provenance([target, draft])}


def measure_peer(model: LoadedModel, threads: int, peers: Path, repeats: int) -> dict[str, Any]:
    """llama.cpp's plain decoding and prompt reading on the same file, in turns with ours: seconds for 512 prompt
    tokens, and a token after them. Raises PeerError."""
    settings = {"target": str(model.path), "draft": None, "threads": threads}
    other = Other("llama_cpp", PLAIN_MODE, settings, peers)
    found: dict[str, list[float]] = {"prefill": [], "token": [], "our prefill": [], "our token": []}
    try:
        for turn in range(repeats + 1):
            prompt = [1 + (i * 7 + turn) % 997 for i in range(CACHED)]
            theirs = other.run(prompt, 24, 0.0, 0)
            ours = _plain(model, prompt, 24)
            if turn:  # the first one warms up
                for name, (first, rest) in (("", (theirs.first_seconds, theirs.tokens_per_second)), ("our ", ours)):
                    found[f"{name}prefill"].append(first)
                    found[f"{name}token"].append(1 / rest if rest else float("nan"))
    finally:
        other.close()
    return {name: sorted(values)[len(values) // 2] for name, values in found.items()} | {
        "versions": other.ready.get("versions"), "provenance": provenance([model])}  # fmt: skip


def _plain(model: LoadedModel, prompt: list[int], tokens: int) -> tuple[float, float]:
    """Seconds of prompt reading, and greedy tokens a second after it, straight through the runtime."""
    cache = model.runtime.new_cache()
    slot = cache.open(len(prompt) + tokens)
    start = perf_counter()
    for at in range(0, len(prompt), 256):
        part = prompt[at : at + 256]
        logits = model.runtime.forward([Chunk(slot, part, logits_from=len(part) - 1)], cache).logits[0]
    first = perf_counter() - start
    start = perf_counter()
    for _ in range(tokens - 1):
        logits = model.runtime.forward([Chunk(slot, [int(logits[-1].argmax())])], cache).logits[0]
    return first, (tokens - 1) / (perf_counter() - start)


def kernels_page(results: Mapping[str, Any]) -> str:
    """The figures as Markdown, each beside its bar."""
    parts = [("# What a pass costs\n\nWritten by `make bench-kernels`; every section says where it was measured. "
             f"Passes are behind {CACHED} cached tokens, medians of interleaved passes. {GAINS}\n")]  # fmt: skip
    for weights, found in results.get("weights", {}).items():
        rows = {int(n): seconds for n, seconds in found["rows"].items()}
        turns = zip(found["one_row"], found["bandwidth"], strict=True)
        reach = statistics.median(seconds * speed / found["bytes"] for seconds, speed in turns)
        bars = BARS.get(weights, {})
        table = [["rows", *(str(n) for n in rows)], ["ms", *(f"{1e3 * s:.1f}" for s in rows.values())],
                 ["ratio to 1 row", *(f"{s / rows[1]:.2f}" for s in rows.values())],
                 ["bar", *(verdict(s / rows[1], most=bars.get(n)) for n, s in rows.items())]]  # fmt: skip
        low, middle, high = statistics.quantiles(found["bandwidth"])
        parts.append(
            f"## {found['provenance']['models'][0]['name']}, weights {weights}\n\n{markdown(table)}\n\n"
            f"One row in turns with reading a GiB: {found['bytes'] / 1e9:.3f} GB of weights in "
            f"{1e3 * statistics.median(found['one_row']):.1f} ms, {reach:.2f} times what reading takes (bar "
            f"{verdict(reach, most=REACH.get(weights))}; {middle / 1e9:.1f} GB/s, quartiles {low / 1e9:.1f} to "
            f"{high / 1e9:.1f}). A prompt of {CACHED} tokens: {found['prefill']:.2f} s, "
            f"{CACHED / found['prefill']:.0f} tokens/s.\n\n{_where(found['provenance'])}\n"
        )
    if draft := results.get("draft"):
        c = draft["draft"] / draft["target"]
        parts.append(f"## Draft step\n\n{1e3 * draft['draft']:.1f} ms ({draft['weights']} weights, "
                     f"{draft['bytes'] / 1e9:.3f} GB) beside {1e3 * draft['target']:.1f} ms for one row of the target: "
                     f"{c:.2f} (bar {verdict(c, most=DRAFT_BAR)}).\n\n{_where(draft['provenance'])}\n")  # fmt: skip
    if peer := results.get("llama_cpp"):
        table = [["", "ours", "llama.cpp", "llama.cpp / ours"],
                 ["ms a token", f"{1e3 * peer['our token']:.1f}", f"{1e3 * peer['token']:.1f}",
                  f"{peer['token'] / peer['our token']:.2f}"],
                 [f"s for {CACHED} prompt tokens", f"{peer['our prefill']:.2f}", f"{peer['prefill']:.2f}",
                  f"{peer['prefill'] / peer['our prefill']:.2f}"]]  # fmt: skip
        parts.append("## Beside llama.cpp, the same file, in turns\n\n" + markdown(table)
                     + f"\n\nThe bar is 1.00 for both. llama.cpp as the wheel builds it: {peer['versions']}\n\n"
                     + f"{_where(peer['provenance'])}\n")  # fmt: skip
    for weights, found in results.get("speculation", {}).items():
        parts.append(f"## Drafting, target weights {weights}\n\n{gains_page(weights, found)}\n\n"
                     f"{_where(found['provenance'])}\n")  # fmt: skip
    if peers := results.get("peers"):
        parts.append(f"## Our defaults beside other engines\n\n{peers_page(peers)}\n\n{_where(peers['provenance'])}\n")
    return "\n".join(parts)


def _where(about: Mapping[str, Any]) -> str:
    changed = " with uncommitted changes" if about["uncommitted_changes"] else ""
    return (f"*{about['date']}, {about['cpu']}, kernels {about['kernels']}, threads {about['threads']}, commit "
            f"{str(about['commit'])[:12]}{changed}. `{about['command']}`*")  # fmt: skip


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m outpace.bench.kernels", description=__doc__)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b", metavar="MODEL")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b", metavar="MODEL", help="none: plain passes only")
    parser.add_argument("--weights", default="file,q8,bf16", metavar="KIND,KIND", help="of the target")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; repeatable")
    parser.add_argument("--threads", type=int, default=default_threads().count)
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="passes of each kind (7)")
    parser.add_argument("--peers-folder", default=".peers", metavar="FOLDER")
    parser.add_argument("--results", metavar="FILE", help="JSON to add to; the page is written beside it (.md)")
    args = parser.parse_args()
    path = Path(args.results) if args.results else None
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    parts = args.only or [part for part in PARTS if args.draft != "none" or part in ("rows", "llama_cpp")]
    try:
        for weights in args.weights.split(","):
            try:
                _one(args, weights, parts, results)
            finally:  # what was measured is kept, whatever became of the rest
                if path:
                    write_atomically(path, json.dumps(results, indent=1))
                    write_atomically(path.with_suffix(".md"), kernels_page(results))
    except OutpaceError as error:
        print(f"outpace: error: {error}", file=sys.stderr)
        return 1
    print(kernels_page(results))
    return 0


def _one(args: argparse.Namespace, weights: str, parts: list[str], results: dict[str, Any]) -> None:
    model = load_model(resolve(args.target), weights=weights, threads=args.threads)
    if "rows" in parts:
        print(f"measuring {model.name}, weights {weights} ...", file=sys.stderr, flush=True)
        results.setdefault("weights", {})[weights] = measure_model(model, args.repeat)
    if "speculation" in parts or (weights == "file" and {"draft", "peers"} & set(parts)):
        draft = load_draft(resolve(args.draft), threads=args.threads)
        if "speculation" in parts:
            print(f"drafting for {model.name}, weights {weights} ...", file=sys.stderr, flush=True)
            results.setdefault("speculation", {})[weights] = measure_gains(model, draft)
        if weights == "file" and "draft" in parts:
            results["draft"] = measure_draft(model, draft, args.repeat)
        if weights == "file" and "peers" in parts:
            results["peers"] = measure_peers(model, draft, args.threads, Path(args.peers_folder))
    if weights == "file" and "llama_cpp" in parts:
        try:
            results["llama_cpp"] = measure_peer(model, args.threads, Path(args.peers_folder), 2)
        except PeerError as error:
            print(f"llama.cpp did not run: {error}", file=sys.stderr)
    del model
    gc.collect()


if __name__ == "__main__":
    sys.exit(main())
