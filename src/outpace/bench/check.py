"""``python -m outpace.bench.check OLD [NEW]``: what got slower between two commits, told apart from noise.

Each commit is checked out into a work tree of its own and its kernels are built; then both measure in turns, in fresh
processes, and the ratios of neighbouring runs are compared. Noise is what the same commit against itself would show:
the spread of the ratios. NEW is the working tree when left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import OutpaceError
from .tables import aligned

LEAST = 1.03  # a change of less than 3% is never called one

# Runs in either work tree, so it uses what has been public since the first release, and prints seconds by name.
_PROBE = """
import json, sys, time
import outpace
target, draft, tokens = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
start = time.perf_counter()
engine = outpace.load(target, draft, gamma=4, threads=int(sys.argv[4]))
loaded = time.perf_counter() - start
prompts = ["def add(a, b):", "import os\\nimport sys\\n\\n\\ndef main(", "The cat sat on the mat. The dog sat on the"]
found = {"load": [loaded]}
for temperature in (0.0, 1.0):
    for name, gamma in (("plain", 0), ("speculative", None)):
        for number, prompt in enumerate(prompts):
            params = outpace.SamplingParams(max_tokens=tokens, temperature=temperature, seed=1, ignore_eos=True)
            engine.generate(prompt, outpace.SamplingParams(max_tokens=2), gamma=gamma)
            report = engine.generate(prompt, params, gamma=gamma).report
            found.setdefault(f"token, {name}, T={temperature:g}", []).append(report.seconds_decode / report.emitted)
long = engine.encode(prompts[1])
long = (long * (256 // len(long) + 1))[:256]
report = engine.generate(long, outpace.SamplingParams(max_tokens=1), gamma=0).report
found["prefill of 256"] = [report.seconds_prefill]
print(json.dumps({name: sum(values) / len(values) for name, values in found.items()}))
"""


@dataclass(frozen=True)
class Change:
    """One figure, old against new: the median of the paired ratios new / old (above 1: slower), and how far such a
    median strays by chance. ``slower`` and ``faster`` are beyond chance and beyond LEAST."""

    name: str
    old: float
    new: float
    ratio: float
    noise: float

    @property
    def slower(self) -> bool:
        return self.ratio > max(LEAST, self.noise)

    @property
    def faster(self) -> bool:
        return self.ratio < 1 / max(LEAST, self.noise)


def changes(old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]) -> list[Change]:
    """Compare runs made in turns, ``old[i]`` and ``new[i]`` next to each other.

    The noise of a median of n ratios is taken as 2.5 times 1.25 s / sqrt(n), with s the standard deviation of their
    logarithms estimated from the median absolute deviation.
    """
    found = []
    for name in old[0]:
        pairs = [(a[name], b[name]) for a, b in zip(old, new, strict=True) if name in a and name in b]
        if not pairs:
            continue
        logs = [math.log(b / a) for a, b in pairs]
        middle = statistics.median(logs)
        spread = 1.4826 * statistics.median(abs(value - middle) for value in logs)
        noise = math.exp(2.5 * 1.2533 * spread / math.sqrt(len(logs)))
        found.append(Change(name, statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs),
                            math.exp(middle), noise))  # fmt: skip
    return found


def table(found: Sequence[Change]) -> str:
    """The changes as text, what got slower marked."""
    rows = [("figure", "old s", "new s", "new / old", "noise", "")]
    for one in found:
        verdict = "SLOWER" if one.slower else "faster" if one.faster else ""
        rows.append((one.name, f"{one.old:.4f}", f"{one.new:.4f}", f"{one.ratio:.3f}", f"{one.noise:.3f}", verdict))
    return aligned(rows)


def measure_tree(tree: Path, arguments: Sequence[str]) -> dict[str, float]:
    """One run in a work tree, in a process of its own. Raises OutpaceError with what the process said."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": arguments[3]}
    done = subprocess.run([sys.executable, "-c", _PROBE, *arguments], capture_output=True, text=True,
                          env=environment, cwd=tree)  # fmt: skip
    if done.returncode:
        raise OutpaceError(f"measuring in {tree.name} failed: {done.stderr.strip()[-400:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def work_tree(repository: Path, commit: str, folder: Path) -> Path:
    """Check the commit out into ``folder`` and build its kernels there. Raises OutpaceError."""
    words = ["git", "worktree", "add", "--detach", str(folder), commit]
    done = subprocess.run(words, cwd=repository, capture_output=True, text=True)
    if done.returncode:
        raise OutpaceError(f"{commit} cannot be checked out: {done.stderr.strip()}")
    done = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, capture_output=True,
                          text=True)  # fmt: skip
    if done.returncode:
        raise OutpaceError(f"the kernels of {commit} cannot be built: {done.stderr.strip()[-400:]}")
    return folder


def main() -> int:
    """The command line; the status is 1 when anything got slower."""
    parser = argparse.ArgumentParser(prog="python -m outpace.bench.check", description=__doc__)
    parser.add_argument("old", help="a commit, such as HEAD or main")
    parser.add_argument("new", nargs="?", help="another one (the working tree)")
    parser.add_argument("--target", default="tiny", metavar="MODEL", help="catalogue name or absolute path (tiny)")
    parser.add_argument("--draft", default="", metavar="MODEL", help="its draft (of tiny: tiny-draft)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (96)")
    parser.add_argument("--threads", type=int, default=1, help="threads (1)")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="pairs of runs (7)")
    args = parser.parse_args()
    draft = args.draft or ("tiny-draft" if args.target == "tiny" else "")
    arguments = [args.target, draft, str(args.tokens), str(args.threads)]
    repository = Path(__file__).parents[3]
    with tempfile.TemporaryDirectory() as folder:
        trees = []
        try:
            trees.append(work_tree(repository, args.old, Path(folder) / "old"))
            trees.append(work_tree(repository, args.new, Path(folder) / "new") if args.new else repository)
            runs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
            for turn in range(args.repeat):
                for place in (0, 1) if turn % 2 == 0 else (1, 0):
                    runs[place].append(measure_tree(trees[place], arguments))
                print(f"pair {turn + 1} of {args.repeat}", file=sys.stderr, flush=True)
        except OutpaceError as error:
            print(f"outpace: error: {error}", file=sys.stderr)
            return 2
        finally:
            for tree in trees:
                if tree != repository:
                    subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=repository, check=False)
    found = changes(*runs)
    print(table(found))
    slower = [one.name for one in found if one.slower]
    print(f"slower: {', '.join(slower)}" if slower else "nothing got slower than the noise")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
