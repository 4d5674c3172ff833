"""The loss that trained heads share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """KL(wanted || drafted) a row, from logits and log probabilities ``[rows, n]``."""
    return F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)
