"""What an EAGLE network learns from: its loss on whole windows of text, differentiable.

It learns the target's distribution, not the text: agreement is wanted. ``tokens`` are ``[batch, time]``, the target's
``features`` ``[batch, time, width]`` and its ``log_probs`` ``[batch, time, vocab_size]`` after each token.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...families.config import DecoderConfig
from ...runtimes.torch_decoder import rotation
from ..common.divergence import divergence
from .net import EagleNet

STEPS = 3  # drafted states in a row, as at decoding (2503.01840, "training-time test")
DECAY = 0.8  # weight of each step: its power of the step's number
FEATURE_WEIGHT = 1.0  # of EAGLE 1's regression of the next feature beside the distribution's (2401.15077, section 3.2)


def eagle_loss(net: EagleNet, tokens: Tensor, features: Tensor, log_probs: Tensor) -> Tensor:
    """KL from the target's distribution to the draft's, a token, over ``STEPS`` steps in a row: the first from the
    target's features, each further one from the state drafted before. EAGLE 1 also learns the features."""
    batch, time = tokens.shape
    rows = time - 1 - STEPS
    states = net.enter(features[:, :rows].flatten(0, 1))
    attention = _Unrolled(net.config, batch, rows)
    loss = torch.zeros(())
    for step in range(STEPS):
        states = net.forward(tokens[:, step + 1 : step + 1 + rows].flatten(), states, attention)
        wanted = log_probs[:, step + 1 : step + 1 + rows].flatten(0, 1)
        if net.draft_ids is not None:
            wanted = wanted[:, net.draft_ids].log_softmax(-1)
        part = divergence(net.head_logits(states)[:, : wanted.shape[1]], wanted)
        if not net.third:
            part = part + FEATURE_WEIGHT * F.smooth_l1_loss(
                states, features[:, step + 1 : step + 1 + rows].flatten(0, 1)
            )
        loss = loss + DECAY**step * part
    return loss


class _Unrolled:
    """Attention of several steps in a row: step s of row t sees the text up to row t, and of the drafted states those
    of row t itself. Called once a step."""

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
        scores += [(queries * drafted).sum(-1, keepdim=True) for drafted, _ in own]
        weights = torch.cat(scores, -1).softmax(-1)  # [batch, heads, rows, rows + steps]
        mixed = weights[..., :rows] @ text
        for place, (_, value) in enumerate(own, start=rows):
            mixed = mixed + weights[..., place : place + 1] * value
        return mixed.transpose(1, 2).reshape(self._batch * rows, heads * head_dim)
