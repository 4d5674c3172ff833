"""Train the heads that ship for the tiny target: Medusa (src/outpace/catalogue/tiny/medusa), EAGLE 1 (tiny/eagle) and
EAGLE 3 (tiny/eagle3).

    python runs/train_tiny_heads.py                  # some minutes on one CPU thread
    python runs/train_tiny_heads.py medusa eagle3    # these alone

The text is that of train_tiny.py (the running interpreter's standard library); the heads learn the target's
distribution on it. Prints the loss, and the acceptance of greedy and sampled decoding on the held-out files with each
draft.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from train_tiny import END, read_text, windows

from outpace import SamplingParams, load
from outpace.catalogue import resolve
from outpace.core.report import Report
from outpace.drafters.eagle.net import EagleNet, build_net
from outpace.drafters.eagle.training import eagle_loss
from outpace.drafters.medusa.drafter import MedusaHeads
from outpace.drafters.medusa.training import medusa_accuracies, medusa_loss
from outpace.files.checkpoint import open_checkpoint
from outpace.runtimes.loading import load_model
from outpace.train.capture import Captured, capture
from outpace.train.loop import train

TINY = Path(__file__).parents[1] / "src/outpace/catalogue/tiny"
TIME, BATCH = 128, 4
DRAFT_VOCAB = 320
SHAPE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024}
COMMON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1, "base_model_name_or_path": "outpace tiny"},
    "eagle": {**COMMON, **SHAPE, "intermediate_size": 160, "bias": True},
    "eagle3": {
        **COMMON, **SHAPE, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 80,
        "draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
    },
}  # fmt: skip


def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
    return torch.randn(rows, columns) * scale / columns**0.5


def first_medusa(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Blocks that change nothing yet (section 2.2.1); the output matrix is the target's."""
    hidden, tensors = 128, {}
    for head in range(config["medusa_num_heads"]):
        for block in range(config["medusa_num_layers"]):
            tensors[f"{head}.{block}.linear.weight"] = torch.zeros(hidden, hidden)
            tensors[f"{head}.{block}.linear.bias"] = torch.zeros(hidden)
    return tensors


def first_eagle(config: Mapping[str, Any], counts: Tensor) -> dict[str, Tensor]:
    """A random layer in SafeAILab's layout of EAGLE 1, or 3 where the config has a draft vocabulary: the tokens that
    ``counts`` ``[vocab_size]`` says are the most frequent."""
    third = "draft_vocab_size" in config
    hidden, wide, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, shared, seen = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim, hidden * (1 + third)
    at = "midlayer." if third else "layers.0."
    tensors = {
        "fc.weight": matrix(hidden, hidden * (3 if third else 2)),
        f"{at}self_attn.q_proj.weight": matrix(heads, seen),
        f"{at}self_attn.k_proj.weight": matrix(shared, seen),
        f"{at}self_attn.v_proj.weight": matrix(shared, seen),
        f"{at}self_attn.o_proj.weight": matrix(hidden, heads, 0.3),
        f"{at}mlp.gate_proj.weight": matrix(wide, hidden),
        f"{at}mlp.up_proj.weight": matrix(wide, hidden),
        f"{at}mlp.down_proj.weight": matrix(hidden, wide, 0.3),
        f"{at}post_attention_layernorm.weight": torch.ones(hidden),
    }
    if not third:
        return tensors | {"fc.bias": torch.zeros(hidden)}
    ids = counts.topk(config["draft_vocab_size"]).indices.sort().values
    known = torch.zeros(config["vocab_size"], dtype=torch.bool)
    known[ids] = True
    tensors |= {f"{at}{name}.weight": torch.ones(hidden) for name in ("input_layernorm", "hidden_norm")}
    tensors |= {"norm.weight": torch.ones(hidden), "lm_head.weight": matrix(len(ids), hidden)}
    return tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
    kept = {k: v.bfloat16() if v.is_floating_point() else v for k, v in tensors.items()}
    save_file({k: v.contiguous() for k, v in kept.items()}, folder / name)
    print(f"  wrote {folder / name}, {(folder / name).stat().st_size} bytes")


def acceptance(drafter: str, heads: Path, prompts: list[str]) -> None:
    """Block efficiency on held-out text, a tree of 8 nodes."""
    for label, accept, params in (
        ("greedy", "match", SamplingParams(max_tokens=64, ignore_eos=True)),
        ("T 1, match", "match", SamplingParams(temperature=1.0, seed=1, max_tokens=64, ignore_eos=True)),
        ("T 1, ratio", "ratio", SamplingParams(temperature=1.0, seed=1, max_tokens=64, ignore_eos=True)),
    ):
        engine = load(
            "tiny", drafter=drafter, gamma=8, accept=accept, threads=1, drafter_options={drafter: {"heads": str(heads)}}
        )
        total = Report.total([result.report for result in engine.generate(prompts, params)])
        print(f"  {label}: block efficiency {total.block_efficiency:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("which", nargs="*", help=f"of {', '.join(CONFIGS)}; all when none is named")
    parser.add_argument("--out", type=Path, default=TINY)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)

    target = load_model(resolve("tiny"), weights="f32", backend="torch", threads=1)
    stored = open_checkpoint(target.path).tensors
    embedding = stored["model.embed_tokens.weight"].load(torch.float32)
    head = stored.get("lm_head.weight")
    output = embedding if head is None else head.load(torch.float32)
    learn, held = read_text()
    encode = target.tokenizer.encode
    data, held_data = (
        torch.tensor([i for text in texts for i in encode(END + text, add_special=False)]) for texts in (learn, held)
    )
    counts = torch.bincount(data, minlength=target.runtime.vocab_size)
    starts = windows(held_data, 16, 64, torch.Generator().manual_seed(0))
    prompts = [target.tokenizer.decode(start.tolist()) for start in starts]

    def eagle(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> EagleNet:
        return build_net(
            config, tensors, "the network", layers=target.config.layers, vocab_size=target.runtime.vocab_size,
            embedding=lambda: embedding, output=lambda: output,
        )  # fmt: skip

    for kind in args.which or CONFIGS:
        torch.manual_seed(args.seed)
        config, medusa = dict(CONFIGS[kind]), kind == "medusa"
        first = first_medusa(config) if medusa else first_eagle(config, counts)
        names = ("hidden",) if medusa else eagle(first, config).taps

        def batches(names: tuple[str, ...] = names) -> Iterator[Captured]:
            generator = torch.Generator().manual_seed(args.seed + 1)
            while True:
                yield capture(target.runtime, windows(data, BATCH, TIME, generator), names)

        def loss(tensors: Mapping[str, Tensor], batch: Captured, config=config, medusa=medusa) -> Tensor:  # type: ignore[no-untyped-def]
            if medusa:
                return medusa_loss(MedusaHeads(config, tensors, "the heads", output), batch.features, batch.log_probs)
            return eagle_loss(eagle(tensors, config), batch.tokens, batch.features, batch.log_probs)

        began = time.monotonic()

        def tell(step: int, value: float, began: float = began) -> None:
            if step % 100 == 0:
                print(f"  step {step}/{args.steps} loss {value:.3f} {time.monotonic() - began:.0f} s", flush=True)

        print(f"{kind}: {sum(t.numel() for t in first.values())} values", flush=True)
        trained = train(first, loss, batches(), steps=args.steps, tell=tell)
        if medusa:
            held_out = capture(target.runtime, windows(held_data, 16, TIME, torch.Generator().manual_seed(2)), names)
            heads = MedusaHeads(config, trained, "the heads", output)
            config["outpace_accuracies"] = medusa_accuracies(heads, held_out.features, held_out.log_probs)
        write(args.out / kind, config, trained, "medusa_lm_head.safetensors" if medusa else "model.safetensors")
        acceptance("medusa" if medusa else "eagle", args.out / kind, prompts)


if __name__ == "__main__":
    main()
