"""How far predicted speed-ups are from measured ones: ``python -m outpace.bench.predicted``.

Each run is a prompt of another category, plain and with the draft side by side: the prediction knows the run's counts
and the seconds of its own rounds, and v(rows) from passes timed in pairs and from other prompts; nothing of the plain
run. Prints each run, and how many of them lie within the bar; the status is 1 when fewer than 18 of 20 do.
"""

from __future__ import annotations

import argparse
import itertools
import sys

from ..catalogue import resolve
from ..core.types import SamplingParams
from ..engine.build import load
from ..runtimes.loading import load_draft, load_model
from . import workload
from .compare import compare
from .session import prompt_ids

BAR, SHARE = 0.12, 0.9


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b", metavar="MODEL")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b", metavar="MODEL", help="none: lookup drafts")
    parser.add_argument("--gamma", default="4", metavar="N", help="drafted tokens a round, or auto (4)")
    parser.add_argument("--runs", type=int, default=20, metavar="N")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N, to run in slices")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="of each answer (48)")
    args = parser.parse_args()
    draft = None if args.draft == "none" else load_draft(resolve(args.draft))
    engine = load(load_model(resolve(args.target)), draft, gamma=None if args.gamma == "auto" else int(args.gamma))
    params = SamplingParams(max_tokens=args.tokens, seed=1)
    near = counted = 0
    for number, prompt in enumerate(itertools.islice(_prompts(), args.skip, args.runs), start=args.skip + 1):
        found = compare(engine, prompt_ids(engine, prompt), params, repeats=1, calibrate=number == args.skip + 1)
        report = found.speculative.report
        if found.speedup is None or report.predicted_speedup is None:
            print(f"{number:3} {prompt.id:16} nothing was drafted: neither figure", flush=True)
            continue
        off = report.predicted_speedup / found.speedup - 1
        counted, near = counted + 1, near + (abs(off) <= BAR)
        print(f"{number:3} {prompt.id:16} predicted x{report.predicted_speedup:.2f}  measured x{found.speedup:.2f}  "
              f"off {off:+.0%}  {report.block_efficiency:.2f} tokens a pass, v {report.rows_cost:.2f}, "
              f"c {report.c:.2f}", flush=True)  # fmt: skip
    print(f"{near} of {counted} predictions are within {BAR:.0%} of the measurement")
    return 0 if near >= SHARE * counted else 1


def _prompts() -> list[workload.Prompt]:
    """The built-in prompts but for the long ones, the categories in turns."""
    groups: dict[str, list[workload.Prompt]] = {}
    for prompt in workload.built_in():
        if prompt.category != "long":
            groups.setdefault(prompt.category, []).append(prompt)
    return [prompt for turn in itertools.zip_longest(*groups.values()) for prompt in turn if prompt is not None]


if __name__ == "__main__":
    sys.exit(main())
