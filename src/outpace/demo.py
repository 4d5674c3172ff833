"""``make demo``: the same model, plain and with speculation, on prompts of our own."""

from __future__ import annotations

import math
import statistics
import sys

from . import catalogue
from .bench.compare import Comparison, compare, versions
from .commands._terminal import accept_any_text, safe_for
from .commands.generate import comparison_table
from .core.errors import CatalogueError
from .core.types import SamplingParams
from .engine.build import load
from .engine.prompts import Prompt
from .runtimes.loading import LoadedModel, load_draft, load_model

PAIR = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
TINY = ("tiny", "tiny-draft")
CHAT_PROMPTS = (
    "Write a Python class `Stack` with push, pop, peek and is_empty, with type hints and docstrings.",
    "Write a Python function `read_ini(path)` that parses an INI file into nested dictionaries without configparser.",
    "Write a Python program that reads a CSV file of orders and prints the total per customer, largest first.",
)
TEXT_PROMPTS = (
    "import os\nimport sys\n\n\ndef main(",
    "class Parser:\n    def __init__(self",
    "    def read(self, size):\n",
)
TOKENS = 96


def main() -> int:
    """Fetch the pair (once), compare with the weights in the file's own bits and in bfloat16, and sum up."""
    accept_any_text()
    names = _pair()
    prompts: tuple[Prompt, ...] = TEXT_PROMPTS
    if names == PAIR:
        prompts = tuple([{"role": "user", "content": text}] for text in CHAT_PROMPTS)
    draft = load_draft(catalogue.resolve(names[1]))
    rows = []
    for weights in ("auto", "bf16"):
        print(f"\nLoading {names[0]} ({weights} weights) ...", file=sys.stderr, flush=True)
        target = load_model(catalogue.resolve(names[0]), weights=weights)
        rows.append(_row(target, _race(target, draft, prompts)))
        del target  # before the next one: both would not fit a small machine
    print(f"\nThe target {names[0]} with the draft {names[1]}, temperature 0, medians of {len(prompts)} prompts:\n")
    print("  weights                  plain    speculative   gain    alpha  tokens a pass  same tokens")
    print("\n".join(rows))
    told = ", ".join(f"{key} {value}" for key, value in versions().items())
    print(f"\n[{told}]")
    return 0


def _race(target: LoadedModel, draft: LoadedModel, prompts: tuple[Prompt, ...]) -> list[Comparison]:
    engine = load(target, draft, gamma=4)
    found: list[Comparison] = []
    for prompt in prompts:
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]  # type: ignore[index]
        print(f"\n> {str(text).strip()}\n", flush=True)
        found.append(compare(engine, prompt, SamplingParams(max_tokens=TOKENS), repeats=1, calibrate=not found))
        safe = safe_for(sys.stdout)
        print(safe(found[-1].speculative.text))
        print(safe(f"\n{comparison_table(found[-1])}"), flush=True)
    return found


def _row(target: LoadedModel, found: list[Comparison]) -> str:
    def median(values: list[float | None]) -> float:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else math.nan  # nothing was drafted

    plain = median([one.plain.report.tokens_per_second for one in found])
    fast = median([one.speculative.report.tokens_per_second for one in found])
    gain = median([one.speedup for one in found])
    alpha = median([one.speculative.report.alpha for one in found])
    block = median([one.speculative.report.block_efficiency for one in found])
    same = "yes" if all(one.tokens_equal for one in found) else "no: see above where"
    name = f"{target.weights} ({target.backend})"
    return f"  {name:<18} {plain:6.1f} tok/s {fast:8.1f} tok/s   x{gain:.2f}   {alpha:5.2f}  {block:13.2f}  {same}"


def _pair() -> tuple[str, str]:
    try:
        for name in PAIR:
            catalogue.pull(name)
        return PAIR
    except CatalogueError as error:
        print(f"\n{error}\n\nThe real pair cannot be had here, so the tiny pair that ships with Outpace serves: "
              "it shows the method, not a speed that matters.", file=sys.stderr)  # fmt: skip
        return TINY


if __name__ == "__main__":
    sys.exit(main())
