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
    scores = torch.log_softmax(logits.double(), dim=-1)
    near = torch.topk(scores, min(scores.numel(), top)).values[-1:] if top else scores.new_tensor([torch.inf])
    candidates = torch.nonzero(scores >= near).flatten()  # ascending ids: a stable sort keeps the lower one first
    best = candidates[torch.argsort(scores[candidates], descending=True, stable=True)][:top]
    return TokenLogprobs(token, float(scores[token]), [(int(i), float(scores[i])) for i in best])
