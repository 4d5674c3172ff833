"""What ``block`` gains over ``ratio`` and ``match``: accepted drafts and tokens a pass at temperature 1.

    python runs/accept_rules.py [--target NAME --draft NAME --gammas 2 4 8 --seeds 3 --tokens 96]

Counts only, no times. The table goes to standard output, one JSON line behind it. The last column of ``ratio`` is
what is expected of both rules for the very same drafted blocks, random draws averaged out: their difference has little
noise.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics

import torch

import outpace
from outpace import SamplingParams, load, verify
from outpace.core.report import Report
from outpace.verify.block import chances

PROSE = (
    "Describe a harbour town on the morning after a storm, in one paragraph.",
    "Why do old bridges hum when the wind is strong? Explain it to a curious child.",
    "Write the opening of a story about a clockmaker who has lost her sense of time.",
)
CODE = (
    "Write a Python function that merges overlapping intervals and returns them sorted.",
    "Write a Python class for a ring buffer with push, pop and iteration.",
    "Write a Python function that parses ISO 8601 durations such as P3DT4H into seconds.",
)
RULES = ("match", "ratio", "block")


def main() -> None:
    """Run every rule on every prompt, seed and gamma."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--gammas", type=int, nargs="+", default=[4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=3, help="of each kind")
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    from outpace.catalogue import resolve
    from outpace.runtimes.loading import load_draft, load_model

    target = load_model(resolve(options.target), threads=options.threads)
    draft = load_draft(resolve(options.draft), threads=options.threads)
    rows = []
    for kind, prompts in (("code", CODE[: options.prompts]), ("prose", PROSE[: options.prompts])):
        for gamma in options.gammas:
            reports: dict[str, list[Report]] = {}
            blocks = Paired()
            for accept in options.rules:
                engine = load(target, draft, accept=accept, max_batch=len(prompts))
                engine._rules["ratio"] = blocks  # it verifies as ratio does, and looks at each block first
                reports[accept] = []
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=options.tokens, ignore_eos=True)
                    results = engine.generate(
                        [[{"role": "user", "content": text}] for text in prompts], params, gamma=gamma
                    )
                    assert isinstance(results, list)
                    reports[accept] += [result.report for result in results]
            for accept in options.rules:
                rows.append({"kind": kind, "gamma": gamma, "accept": accept, **summary(reports[accept])})
                if accept == "ratio":
                    rows[-1] |= blocks.summary()
                print(line(rows[-1]), flush=True)
    settings = {name: getattr(options, name) for name in ("first_seed", "seeds", "tokens", "prompts")}
    models = {"target": [target.name, target.weights], "draft": [draft.name, draft.weights]}
    versions = {"outpace": outpace.__version__, "torch": torch.__version__, "machine": platform.machine()}
    print(json.dumps(versions | models | settings | {"rows": rows}))


class Paired:
    """The rule ``ratio``; of every block that it verifies, the accepted drafts expected of ``ratio`` and ``block``."""

    LOSSLESS, TREES, NEEDS_DISTRIBUTIONS, SHARED_NOISE = True, False, True, False
    draw = staticmethod(verify.rule("ratio").draw)

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []

    def verify(self, proposal, distributions, rng, base):
        if len(proposal):
            self.found.append(expected(proposal, distributions))
        return verify.rule("ratio").verify(proposal, distributions, rng, base)

    def summary(self) -> dict[str, float]:
        gains = [block - ratio for ratio, block in self.found]
        return {
            "blocks": len(gains),
            "expected_of_ratio": statistics.fmean(ratio for ratio, _ in self.found),
            "expected_gain_of_block": statistics.fmean(gains),
            "standard_error_of_gain": statistics.stdev(gains) / len(gains) ** 0.5,
        }


def expected(proposal, distributions) -> tuple[float, float]:
    """Accepted drafts expected of ``ratio`` and of ``block`` for one drafted chain."""
    run, ratio = 1.0, 0.0
    for node, token in enumerate(proposal.tokens):
        run *= min(1.0, distributions[node].prob(token) / proposal.distribution(node).prob(token))
        ratio += run
    none_from, block = 1.0, 0.0
    for _, stand in reversed(
        list(chances(proposal, distributions))
    ):  # the longest stretch that any random draw lets stand
        none_from *= 1 - stand
        block += 1 - none_from
    return ratio, block


def summary(reports: list[Report]) -> dict[str, float]:
    """Tokens a pass over all answers with its standard error over answers, and accepted drafts a pass."""
    passes = sum(report.target_passes for report in reports)
    each = [report.emitted / report.target_passes for report in reports]
    return {
        "block_efficiency": sum(report.emitted for report in reports) / passes,
        "standard_error": statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0,
        "emitted": sum(report.emitted for report in reports),
        "passes": passes,
        "accepted_a_pass": sum(report.accepted for report in reports) / passes,
        "accepted_share": sum(report.accepted for report in reports) / sum(report.drafted for report in reports),
    }


def line(row: dict[str, object]) -> str:
    """One row of the table."""
    text = (f"{row['kind']:6} gamma {row['gamma']}  {row['accept']:6} {row['block_efficiency']:.3f} tokens a pass "
            f"(+-{row['standard_error']:.3f}), {row['accepted_share']:.3f} of the drafts accepted")  # fmt: skip
    if row["accept"] == "ratio":
        text += (f"; the same {row['blocks']} blocks: {row['expected_of_ratio']:.3f} expected, block "
                 f"{row['expected_gain_of_block']:+.3f} (+-{row['standard_error_of_gain']:.3f})")  # fmt: skip
    return text


if __name__ == "__main__":
    main()
