"""How far do the fast paths' roundings move the model's distribution? KL a token on real text, against unrounded
arithmetic.

    python runs/rounding.py --target qwen2.5-coder-1.5b --text src/outpace/engine/loop.py docs/why/how-it-works.md

The reference multiplies the file's exact weights with float activations and keeps keys and values in float32. Beside
the KL (nats a token) stands how often the likeliest token is the same. Prints a row of a Markdown table each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from outpace.catalogue import resolve
from outpace.core.types import Chunk
from outpace.files.checkpoint import open_checkpoint
from outpace.runtimes.loading import checked_config
from outpace.runtimes.native import NativeRuntime

WAYS = {
    "the file's weights, float activations, bf16 keys and values": {"activations": "float"},
    "the file's weights, int8 activations, float32 keys and values": {"kv_dtype": "float32"},
    "the file's weights, int8 activations, bf16 keys and values (the default)": {},
    "q8": {"weights": "q8"},
    "q4": {"weights": "q4"},
    "bf16": {"weights": "bf16"},
}


def logits_of(runtime: NativeRuntime, texts: list[list[int]]) -> torch.Tensor:
    """``[tokens of all texts, vocab]``, float32."""
    cache = runtime.new_cache()
    return torch.cat([runtime.forward([Chunk(cache.open(len(text)), text)], cache).logits[0] for text in texts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files to read")
    parser.add_argument("--tokens", type=int, default=256, help="of each file, from its beginning")
    args = parser.parse_args()
    checkpoint = open_checkpoint(resolve(args.target))
    config = checked_config(checkpoint, 4096)
    texts = [
        checkpoint.tokenizer.encode(path.read_text(encoding="utf-8"), add_special=True)[: args.tokens]
        for path in args.text
    ]
    exact = logits_of(NativeRuntime(checkpoint, config, activations="float", kv_dtype="float32"), texts)
    distribution, best = exact.log_softmax(-1), exact.argmax(-1)
    print(f"{args.target}, {len(best)} tokens of {', '.join(map(str, args.text))}\n")
    print("| | KL, nats a token | the likeliest token is the same |\n|---|---|---|")
    for name, how in WAYS.items():
        found = logits_of(NativeRuntime(checkpoint, config, **how), texts)  # type: ignore[arg-type]
        # A row at a time: float64 rows of a large vocabulary would not fit.
        each = [
            float((p.double().exp() * (p.double() - q.double().log_softmax(-1))).sum())
            for p, q in zip(distribution, found, strict=True)
        ]
        same = float((found.argmax(-1) == best).double().mean())
        print(f"| {name} | {sum(each) / len(each):.1e} | {same:.1%} |", flush=True)


if __name__ == "__main__":
    main()
