"""What loading a model file takes: seconds, and the most memory that this process ever held, in sizes of the file.

    python runs/load_cost.py --target qwen2.5-coder-1.5b

The file is loaded twice, and the second time counts: its pages are in memory by then. Pages of the file that are mapped
count as memory, too. The libraries' own memory, as it is before the first load, is told apart.
"""

from __future__ import annotations

import argparse
from time import perf_counter

from outpace.bench.provenance import peak_memory
from outpace.catalogue import resolve
from outpace.runtimes.loading import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    args = parser.parse_args()
    path = resolve(args.target)
    size, before = path.stat().st_size, peak_memory()
    seconds = []
    for _ in range(2):
        start = perf_counter()
        model = load_model(path)
        seconds.append(perf_counter() - start)
        del model
    held = (peak_memory() - before) / size
    print(f"{path.name}, {size / 1e9:.2f} GB: {seconds[0]:.1f} s, then {seconds[1]:.1f} s; at most {held:.2f} times "
          f"the file beside {before / 1e9:.2f} GB of libraries")  # fmt: skip


if __name__ == "__main__":
    main()
