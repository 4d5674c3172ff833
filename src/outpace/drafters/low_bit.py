"""The target's own weights, rounded to 4 bits, draft for it (QuantSpec, Tiwari et al., arXiv 2502.10424; ML-SpecQD,
Georganas et al., arXiv 2503.13565). For targets that run at more bits: bf16, q8, f32, or a file that holds such.

The rounded copy costs memory of its own; keys and values are the target's (see common/own_cache.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.errors import DrafterError
from ..core.protocols import Drafter, Parts, Requirements
from ..families.table import expected_tensors, tensor_names
from ..files.checkpoint import open_checkpoint
from ..runtimes.loading import HEAD_IDS, LoadedModel, kept_head
from ..runtimes.native import NativeRuntime
from .common.own_cache import OwnCacheDraft

_LEAST_BITS = 7.0  # a weight: from here on, 4 bits (5 with their scales) are worth a second copy; chosen by hand


@dataclass(frozen=True)
class Config:
    gamma: int = 4  # tokens drafted a round
    head: int = HEAD_IDS  # token ids that the draft's output head keeps, and the special ones; 0: all


def bits_of(model: LoadedModel) -> float:
    """Bits that a weight of the model takes in memory, scales included."""
    shapes, embedding = expected_tensors(model.config), tensor_names(model.config)["embedding"]
    return 8 * model.nbytes / sum(math.prod(shape) for name, shape in shapes.items() if name != embedding)


def requires(config: Config) -> Requirements:
    return Requirements()


def create(config: Config, parts: Parts) -> Drafter:
    model = parts.target_model
    if not isinstance(model, LoadedModel):
        raise DrafterError("the drafter 'low_bit' needs a target that was loaded from a file")
    bits = bits_of(model)
    if bits < _LEAST_BITS:
        raise DrafterError(
            f"the drafter 'low_bit' rounds the target to 4 bits, but {model.name} runs at {bits:.1f} bits a weight "
            "already: run it with weights bf16 or q8, or choose another drafter"
        )
    runtime = NativeRuntime(
        open_checkpoint(model.path),
        model.config,
        weights="q4",
        kv_dtype=model.runtime.new_cache().dtype,
        threads=getattr(model.runtime, "threads", None),
        head_rows=kept_head(model.tokenizer, model.end_tokens, config.head),
    )
    return OwnCacheDraft(runtime)
