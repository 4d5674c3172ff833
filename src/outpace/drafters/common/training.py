"""What Medusa and EAGLE heads learn from: their own losses, differentiable, on whole windows of text.

All take ``tokens`` ``[batch, time]``, the target's ``features`` ``[batch, time, width]`` and its ``log_probs``
``[batch, time, vocab_size]`` after each of them. They learn the target's distribution, not the text: agreement is
wanted.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...families.config import DecoderConfig
from ...runtimes.torch_decoder import rotation
from ..eagle.net import EagleNet
from ..medusa.drafter import MedusaHeads

MEDUSA_DECAY = 0.8  # weight of head k: its power of k (2401.10774, section 2.2.1)
EAGLE_STEPS = 3  # guessed states in a row, as at decoding (2503.01840, "training-time test")
EAGLE_DECAY = 0.8
FEATURE_WEIGHT = 1.0  # of EAGLE 1's regression of the next feature beside the distribution's (2401.15077, section 3.2)


def medusa_loss(heads: MedusaHeads, features: Tensor, log_probs: Tensor) -> Tensor:
    """KL from the target's distribution to each head's guess of it, a token: head k of row t is about row t + k + 1."""
    time, count = features.shape[1], len(heads)
    rows = time - count
    logits = heads.logits(features[:, :rows].flatten(0, 1), count)[..., : log_probs.shape[-1]]  # [rows, heads, vocab]
    loss = torch.zeros(())
    for head in range(count):
        wanted = log_probs[:, head + 1 : head + 1 + rows].flatten(0, 1)
        loss = loss + MEDUSA_DECAY**head * _divergence(logits[:, head], wanted)
    return loss


def medusa_accuracies(heads: MedusaHeads, features: Tensor, log_probs: Tensor, ranks: int = 8) -> list[list[float]]:
    """By head and rank, how often that guess is the target's most probable token, given that the path above was
    guessed: what a static tree is built from (section 2.3.3)."""
    time, count = features.shape[1], len(heads)
    rows = time - count
    logits = heads.logits(features[:, :rows].flatten(0, 1), count)[..., : log_probs.shape[-1]]
    table = []
    for head in range(count):
        wanted = log_probs[:, head + 1 : head + 1 + rows].flatten(0, 1).argmax(-1, keepdim=True)
        hits = (logits[:, head].topk(ranks).indices == wanted).double().mean(0)
        table.append([round(min(max(float(hit), 1e-4), 1 - 1e-4), 4) for hit in hits])
    return table


def eagle_loss(net: EagleNet, tokens: Tensor, features: Tensor, log_probs: Tensor) -> Tensor:
    """KL from the target's distribution to the draft's guess, a token, over ``EAGLE_STEPS`` guesses in a row: the first
    from the target's features, each further one from the state guessed before. EAGLE 1 also learns the features."""
    batch, time = tokens.shape
    rows = time - 1 - EAGLE_STEPS
    states = net.enter(features[:, :rows].flatten(0, 1))
    attention = _Unrolled(net.config, batch, rows)
    loss = torch.zeros(())
    for step in range(EAGLE_STEPS):
        states = net.forward(tokens[:, step + 1 : step + 1 + rows].flatten(), states, attention)
        wanted = log_probs[:, step + 1 : step + 1 + rows].flatten(0, 1)
        if net.draft_ids is not None:
            wanted = wanted[:, net.draft_ids].log_softmax(-1)
        part = _divergence(net.head_logits(states)[:, : wanted.shape[1]], wanted)
        if not net.third:
            part = part + FEATURE_WEIGHT * F.smooth_l1_loss(
                states, features[:, step + 1 : step + 1 + rows].flatten(0, 1)
            )
        loss = loss + EAGLE_DECAY**step * part
    return loss


class _Unrolled:
    """Attention of the guesses in a row: step s of row t sees what the text has up to row t, and of the guessed
    states those of row t itself. Called once a step."""

    def __init__(self, config: DecoderConfig, batch: int, rows: int) -> None:
        self._config, self._batch, self._rows = config, batch, rows
        self._past: list[tuple[Tensor, Tensor]] = []
        self._mask = torch.full((rows, rows), -torch.inf).triu(1)

    def __call__(self, qkv: Tensor) -> Tensor:
        config, rows = self._config, self._rows
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        qkv = qkv.view(self._batch, rows, heads + 2 * kv_heads, head_dim)
        positions = torch.arange(rows) + len(self._past)
        cos, sin = rotation(positions, config, qkv.dtype)  # [rows, 1, head_dim]
        turned = qkv[:, :, : heads + kv_heads]
        turned = turned * cos + turned.roll(head_dim // 2, -1) * sin
        queries = turned[:, :, :heads].transpose(1, 2) / math.sqrt(head_dim)  # [batch, heads, rows, head_dim]
        group = heads // kv_heads
        keys = turned[:, :, heads:].transpose(1, 2).repeat_interleave(group, 1)
        values = qkv[:, :, heads + kv_heads :].transpose(1, 2).repeat_interleave(group, 1)
        self._past.append((keys, values))
        (first, text), *own = self._past
        scores = [queries @ first.transpose(-1, -2) + self._mask]
        scores += [(queries * guessed).sum(-1, keepdim=True) for guessed, _ in own]
        weights = torch.cat(scores, -1).softmax(-1)  # [batch, heads, rows, rows + steps]
        mixed = weights[..., :rows] @ text
        for place, (_, value) in enumerate(own, start=rows):
            mixed = mixed + weights[..., place : place + 1] * value
        return mixed.transpose(1, 2).reshape(self._batch * rows, heads * head_dim)


def _divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """KL(wanted || guessed) a row, from logits and log probabilities ``[rows, n]``."""
    return F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)
