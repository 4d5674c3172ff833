"""From one row of logits to the distribution of the next token.

The controls act in this order, each on what the one before left:

1. grammar: tokens that the constraint forbids are left out;
2. logit bias, repetition penalty, frequency penalty, presence penalty, with the counts of the row's own prefix;
3. temperature;
4. top-k; top-p (the smallest set of most probable tokens whose mass reaches it, renormalised after top-k);
   min-p (relative to the most probable token).

Temperature 0 takes the greatest logit after steps 1 and 2. Ties are broken by the lower token id everywhere. A row is
computed alone, so that no other row can change a bit of it; its distribution depends on logits and prefix alone,
whatever was asked before. Probabilities are in the logits' own precision, at least float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..core.errors import NumericsError, ParameterError
from ..core.types import Distribution, SamplingParams
from ..kernels.sampling import Sampler
from .grammar import Compiled, Grammars
from .penalties import Penalties

_COLDEST = 1e-30  # below it float32 would divide by zero; nothing but exact ties is left long before
_NUCLEUS = 1024  # tokens sorted first when looking for the top-p set; a full sort only if they fall short


class Pipeline:
    """The logits pipeline of one request.

    ``prompt_length``: how many first tokens of every prefix are the prompt's. ``vocab_size``: checks the ids of
    ``logit_bias`` where given. ``grammars``: needed for a constraint, or this one compiled. ``sampler``: the C kernels,
    which keep the same tokens faster. Raises ParameterError for a bias beyond the vocabulary and for a constraint that
    cannot be used.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_length: int = 0,
        *,
        vocab_size: int | None = None,
        grammars: Grammars | Compiled | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self._params, self._prompt_length, self._sampler = params, prompt_length, sampler
        self._rooms: dict[str, Tensor] = {}
        if vocab_size is not None and max(params.logit_bias, default=0) >= vocab_size:
            beyond = max(params.logit_bias)
            raise ParameterError(f"logit_bias names token {beyond}, but the vocabulary ends at {vocab_size - 1}")
        self._penalties = Penalties(params, prompt_length) if Penalties.wanted(params) else None
        self._grammar = None
        if params.constraint is not None:
            if grammars is None:
                raise ParameterError("constraint needs a tokenizer, and this pipeline has none")
            self._grammar = grammars.grammar(params.constraint)

    def distribution(self, logits: Tensor, prefix: Sequence[int]) -> Distribution:
        """The distribution after ``prefix`` from its logits ``[vocab_size]``. Raises NumericsError on NaN or +inf, and
        ConstraintError where the constraint cannot be followed."""
        params = self._params
        scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()  # [vocab_size]
        ids = None
        if self._penalties is not None:
            scores = self._penalties.adjust(scores, prefix)
        if self._grammar is not None:
            ids = self._grammar.allowed(prefix[self._prompt_length :])
            ids = ids[: int(torch.searchsorted(ids, scores.numel()))]
            scores = _possible(scores[ids])  # [s]
        fast = self._sampler if scores.dtype == torch.float32 else None
        best, top = _greatest(scores, fast, len(prefix))
        if params.temperature == 0 or scores.numel() == 1:
            return Distribution.point(best if ids is None else int(ids[best]), scores.dtype)
        if 0 < params.top_k < scores.numel():
            kept = fast.top_k(scores, params.top_k) if fast else _top_k(scores, params.top_k)
            scores, ids = scores[kept], kept if ids is None else ids[kept]
        if params.temperature != 1:
            shrinks = params.top_p < 1 or params.min_p > 0
            scores = torch.sub(scores, top, out=self._room("scores", scores) if shrinks else None)
            scores /= max(params.temperature, _COLDEST)
            top = 0.0
        if params.top_p < 1:
            probs = torch.softmax(scores, dim=-1, out=self._room("probs", scores))
            kept = fast.top_p(probs, params.top_p) if fast else _top_p(probs, params.top_p)
            scores, ids = scores[kept], kept if ids is None else ids[kept]
        if params.min_p > 0:
            floor = top + math.log(params.min_p)
            kept = fast.at_least(scores, floor) if fast else torch.nonzero(scores >= floor).flatten()
            scores, ids = scores[kept], kept if ids is None else ids[kept]
        return Distribution(ids=ids, scores=scores, log_total=partial(fast.log_total, top=top) if fast else None)

    def _room(self, use: str, like: Tensor) -> Tensor:
        """Memory that this pipeline's next row uses again: fresh pages cost more than the arithmetic on them."""
        room = self._rooms.get(use)
        if room is None or room.shape != like.shape or room.dtype != like.dtype:
            with torch.inference_mode(False):  # one made in that mode could not be written to outside of it
                room = self._rooms[use] = torch.empty(like.shape, dtype=like.dtype)
        return room


def _greatest(scores: Tensor, sampler: Sampler | None, length: int) -> tuple[int, float]:
    """Place and value of the greatest score, the first of equals."""
    if sampler is not None:
        try:
            best = sampler.argmax(scores)
            return best, float(scores[best])
        except NumericsError:
            pass  # said in the words below
    top, place = torch.max(scores, dim=-1)  # NaN wins a max, so one look finds it
    if not torch.isfinite(top):
        raise NumericsError(
            f"the model gave {float(top)} as its greatest logit after {length} tokens: its weights or "
            "its precision are at fault; try --weights f32 or another file"
        )
    return int(place), float(top)


def _possible(scores: Tensor) -> Tensor:
    """Scores of allowed tokens; where the model holds none of them possible, as a draft whose head was pruned
    may, all are alike."""
    return torch.zeros_like(scores) if bool((scores == -torch.inf).all()) else scores


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
