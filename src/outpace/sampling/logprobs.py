"""What the target itself thought of a token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprobs(NamedTuple):
    """A token, its log-probability, and the most probable tokens of its place, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


def token_logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs:
    """Natural logarithms under the target's own softmax of ``logits`` ``[vocab_size]``, before temperature,
    penalties and truncation. ``top``: how many alternatives; ties go to the lower id."""
    row = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    total = float(torch.logsumexp(row, dim=-1))
    near = torch.topk(row, min(row.numel(), top)).values[-1:] if top else row.new_tensor([torch.inf])
    candidates = torch.nonzero(row >= near).flatten()  # ascending ids: a stable sort keeps the lower one first
    best = candidates[torch.argsort(row[candidates], descending=True, stable=True)][:top]
    return TokenLogprobs(token, float(row[token]) - total, [(int(i), float(row[i]) - total) for i in best])
