"""What a target says about a text: the features and distributions that its drafts learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.protocols import Runtime
from ..core.types import Chunk
from ..runtimes.torch_tensors import tensor_of


@dataclass(frozen=True)
class Captured:
    """``tokens`` ``[batch, time]``, ``features`` ``[batch, time, all widths]`` and ``log_probs``
    ``[batch, time, vocab_size]`` (float32) of the target at temperature 1."""

    tokens: Tensor
    features: Tensor
    log_probs: Tensor


def capture(runtime: Runtime, tokens: Tensor, names: Sequence[str]) -> Captured:
    """Run windows of text ``[batch, time]`` through the target, all in one pass. ``names``: its features, side by side.
    Raises ParameterError and ContextError as the runtime does."""
    cache = runtime.new_cache()
    batch, time = tokens.shape
    chunks = [Chunk(cache.open(time), row) for row in tokens.tolist()]
    seen = runtime.forward(chunks, cache, names)
    features = [torch.cat([tensor_of(seen.features[name][i]).float() for name in names], -1) for i in range(batch)]
    # Cloned: a runtime's tensors may be inference tensors, which autograd does not take.
    return Captured(
        tokens,
        torch.stack(features).clone(),
        torch.stack([tensor_of(rows).float() for rows in seen.logits]).log_softmax(-1).clone(),
    )
