"""``make demo``: the same model, plain and with speculation, on prompts of our own."""

from __future__ import annotations

import statistics
import sys

from .bench.compare import compare, provenance
from .commands.generate import comparison_table
from .core.errors import CatalogueError
from .core.types import SamplingParams
from .engine.build import load
from .models import catalogue

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
    "    def read(self, size=-1):\n",
)


def main() -> int:
    """Fetch the pair (once), compare, and say in one line what came of it."""
    names = _pair()
    print(f"\nLoading {names[0]} with the draft {names[1]} ...", file=sys.stderr, flush=True)
    engine = load(*names)
    chat = engine.target.chat_template is not None and names == PAIR
    ratios, equal = [], True
    for text in CHAT_PROMPTS if chat else TEXT_PROMPTS:
        print(f"\n\033[1m> {text.strip()}\033[0m" if sys.stdout.isatty() else f"\n> {text.strip()}", flush=True)
        prompt = [{"role": "user", "content": text}] if chat else text
        found = compare(engine, prompt, SamplingParams(max_tokens=128), repeats=3)
        print(found.speculative.text)
        print(comparison_table(found), flush=True)
        ratios.append(found.speedup or 0.0)
        equal &= found.tokens_equal
    versions = ", ".join(f"{key} {value}" for key, value in provenance().items())
    print(f"\n{names[0]} (weights: {engine.target.weights}, {engine.target.backend} kernels) answers "
          f"{statistics.median(ratios):.2f} times as fast as plain decoding of the same weights "
          f"(median of {len(ratios)} prompts, temperature 0);")  # fmt: skip
    print("its tokens are the same." if equal else
          "some tokens differ: passes of one and of several rows round differently in this precision.")  # fmt: skip
    print(f"[{versions}]")
    return 0


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
