"""Temperature, top-k, top-p and min-p: from one row of logits to the law of the next token.

The controls act in this order, each on what the one before left, renormalised: temperature, top-k,
top-p (the smallest set of most probable tokens whose mass reaches it), min-p (relative to the most
probable token). Ties are broken by the lower token id everywhere. A row is computed alone, so that no
other row can change a bit of it. Probabilities are in the logits' own precision, at least float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.errors import NumericsError
from ..core.types import Law, SamplingParams

_COLDEST = 1e-30  # below it float32 would divide by zero; nothing but exact ties is left long before
_NUCLEUS = 1024  # tokens sorted first when looking for the top-p set; a full sort only if they fall short


class Pipeline:
    """The logits pipeline of one request."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params

    def law(self, logits: Tensor, prefix: Sequence[int]) -> Law:
        """The law after ``prefix`` from its logits ``[vocab_size]``. Raises NumericsError on NaN or +inf."""
        params = self._params
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        top, best = torch.max(logits, dim=-1)  # NaN wins a max, so one look finds it
        if not torch.isfinite(top):
            raise NumericsError(
                f"the model gave {float(top)} as its greatest logit after {len(prefix)} tokens: its weights or "
                "its precision are at fault; try --weights f32 or another file"
            )
        if params.temperature == 0:
            return Law.point(int(best), logits.dtype)
        scores = (logits - top) / max(params.temperature, _COLDEST)  # [vocab_size]
        if not (0 < params.top_k < scores.numel() or params.top_p < 1 or params.min_p > 0):
            return Law(scores=scores)
        ids = None
        if 0 < params.top_k < scores.numel():
            ids = _top_k(scores, params.top_k)
            scores = scores[ids]
        probs = torch.softmax(scores, dim=-1)  # [s]
        if params.top_p < 1:
            kept = _top_p(probs, params.top_p)
            probs, ids = probs[kept], kept if ids is None else ids[kept]
        if params.min_p > 0:
            kept = torch.nonzero(probs >= params.min_p * probs.max()).flatten()
            probs, ids = probs[kept], kept if ids is None else ids[kept]
        return Law(probs / probs.sum(), ids)


def _top_k(scores: Tensor, k: int) -> Tensor:
    """Ids of the k greatest scores, ascending."""
    least = torch.topk(scores, k).values[-1]
    above = torch.nonzero(scores > least).flatten()
    tied = torch.nonzero(scores == least).flatten()[: k - above.numel()]
    return torch.cat((above, tied)).sort().values


def _top_p(probs: Tensor, top_p: float) -> Tensor:
    """Indices of the smallest set of most probable tokens with mass >= top_p, ascending."""
    for count in (_NUCLEUS, probs.numel()):
        if count < probs.numel():
            candidates = torch.nonzero(probs >= torch.topk(probs, count).values[-1]).flatten()
        else:
            candidates = torch.arange(probs.numel())
        order = torch.sort(probs[candidates], descending=True, stable=True).indices
        # Sequential in float64: the sums over the first tokens are the same however many candidates follow.
        mass = torch.cumsum(probs[candidates][order].double(), dim=0)
        if float(mass[-1]) >= top_p or candidates.numel() == probs.numel():
            break
    size = int(torch.searchsorted(mass, top_p)) + 1
    return candidates[order[:size]].sort().values
