"""What Medusa heads learn from: their loss on whole windows of text, differentiable, and their accuracies.

They learn the target's distribution, not the text: agreement is wanted. Both functions take the target's ``features``
``[batch, time, hidden]`` and its ``log_probs`` ``[batch, time, vocab_size]`` after each token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.divergence import divergence
from .drafter import MedusaHeads

DECAY = 0.8  # weight of head k: its power of k (2401.10774, section 2.2.1)


def medusa_loss(heads: MedusaHeads, features: Tensor, log_probs: Tensor) -> Tensor:
    """KL from the target's distribution to each head's, a token: head k of row t is about row t + k + 1."""
    time, count = features.shape[1], len(heads)
    rows = time - count
    logits = heads.logits(features[:, :rows].flatten(0, 1), count)[..., : log_probs.shape[-1]]  # [rows, heads, vocab]
    loss = torch.zeros(())
    for head in range(count):
        wanted = log_probs[:, head + 1 : head + 1 + rows].flatten(0, 1)
        loss = loss + DECAY**head * divergence(logits[:, head], wanted)
    return loss


def medusa_accuracies(heads: MedusaHeads, features: Tensor, log_probs: Tensor, ranks: int = 8) -> list[list[float]]:
    """By head and rank, how often that proposal is the target's most probable token, given that the path above it was
    proposed: what a static tree is built from (section 2.3.3)."""
    time, count = features.shape[1], len(heads)
    rows = time - count
    logits = heads.logits(features[:, :rows].flatten(0, 1), count)[..., : log_probs.shape[-1]]
    table = []
    for head in range(count):
        wanted = log_probs[:, head + 1 : head + 1 + rows].flatten(0, 1).argmax(-1, keepdim=True)
        hits = (logits[:, head].topk(ranks).indices == wanted).double().mean(0)
        table.append([round(min(max(float(hit), 1e-4), 1 - 1e-4), 4) for hit in hits])
    return table
