"""Small random heads in float64 for toys, whose features are their logits. Nothing is trained, nor needs to be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..drafters.eagle.net import EagleNet, build_net
from ..drafters.medusa.drafter import MedusaHeads

_DIM = 4  # of the one attention head
_KIND = torch.float64


def toy_medusa(vocab_size: int, heads: int = 3) -> MedusaHeads:
    """Heads of one block over features as wide as the vocabulary."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for head in range(heads):
        tensors[f"{head}.0.linear.weight"] = torch.randn(vocab_size, vocab_size, generator=generator, dtype=_KIND) / 2
        tensors[f"{head}.0.linear.bias"] = torch.randn(vocab_size, generator=generator, dtype=_KIND)
        tensors[f"{head}.1.weight"] = torch.randn(vocab_size, vocab_size, generator=generator, dtype=_KIND) / 2
    table = [[0.6 / (rank + 1) for rank in range(vocab_size)] for _ in range(heads)]
    settings = {"medusa_num_heads": heads, "medusa_num_layers": 1, "outpace_accuracies": table}
    return MedusaHeads(settings, tensors, "the toy heads")


def toy_eagle(vocab_size: int, third: bool = False, draft_vocab: int | None = None) -> EagleNet:
    """A network over features as wide as the vocabulary: EAGLE 1, or ``third`` with a head over ``draft_vocab``."""
    settings, tensors = toy_checkpoint(vocab_size, third, draft_vocab)
    return build_net(settings, tensors, "the toy network", layers=None, vocab_size=vocab_size,
                 embedding=lambda: torch.empty(0, 0), output=lambda: torch.empty(0, 0))  # fmt: skip


def toy_checkpoint(
    vocab_size: int, third: bool = False, draft_vocab: int | None = None
) -> tuple[dict[str, object], dict[str, Tensor]]:
    """config.json and tensors of :func:`toy_eagle` in SafeAILab's layout."""
    generator = torch.Generator().manual_seed(2)
    hidden, wide, seen = vocab_size, 6, vocab_size * (2 if third else 1)
    rows = draft_vocab or vocab_size
    at = "midlayer." if third else "layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab_size, hidden), "fc.weight": (hidden, hidden * (3 if third else 2)),
        f"{at}self_attn.q_proj.weight": (_DIM, seen), f"{at}self_attn.k_proj.weight": (_DIM, seen),
        f"{at}self_attn.v_proj.weight": (_DIM, seen), f"{at}self_attn.o_proj.weight": (hidden, _DIM),
        f"{at}mlp.gate_proj.weight": (wide, hidden), f"{at}mlp.up_proj.weight": (wide, hidden),
        f"{at}mlp.down_proj.weight": (hidden, wide), f"{at}post_attention_layernorm.weight": (hidden,),
        "lm_head.weight": (rows, hidden),
    }  # fmt: skip
    if third:
        shapes |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
        }
    # Small enough that the distributions are not all but certain.
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=_KIND) / math.sqrt(shape[-1])
        for name, shape in shapes.items()
    }
    settings: dict[str, object] = {
        "model_type": "llama", "hidden_size": hidden, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": _DIM, "intermediate_size": wide, "vocab_size": vocab_size, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
    }  # fmt: skip
    if third:
        settings |= {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "draft_vocab_size": rows}
        kept = torch.randperm(vocab_size, generator=generator)[:rows].sort().values
        tensors["d2t"] = kept - torch.arange(rows)
        tensors["t2d"] = torch.isin(torch.arange(vocab_size), kept)
    return settings, tensors
