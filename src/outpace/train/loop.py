"""The one training loop: AdamW over a drafter's tensors, its own loss on captured windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from .capture import Captured

Loss = Callable[[Mapping[str, Tensor], Captured], Tensor]
_WARM_UP = 50  # steps


def train(
    tensors: Mapping[str, Tensor],
    loss_of: Loss,
    batches: Iterable[Captured],
    *,
    steps: int,
    rate: float = 2e-3,
    frozen: Iterable[str] = (),
    tell: Callable[[int, float], None] = lambda step, loss: None,
) -> dict[str, Tensor]:
    """Minimise ``loss_of(tensors, batch)`` over the floating-point tensors but for the ``frozen``; returns the trained
    tensors, the given ones are left alone.

    ``steps``: batches that are taken (fewer when they run out); the rate rises linearly at first and falls as a cosine.
    ``tell(step, loss)`` is called after each. Raises FloatingPointError when the loss is no longer a number.
    """
    kept = set(frozen)
    trained = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    learning = [t.requires_grad_() for name, t in trained.items() if t.is_floating_point() and name not in kept]
    optimizer = torch.optim.AdamW(learning, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    for step, batch in zip(range(steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / _WARM_UP, 0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
        loss = loss_of(trained, batch)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()} at step {step + 1}; lower the rate")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        tell(step + 1, loss.item())
    return {name: tensor.detach() for name, tensor in trained.items()}
