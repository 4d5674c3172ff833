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

import numpy as np

from ..core.errors import NumericsError, ParameterError
from ..core.types import Array, Distribution, SamplingParams, softmax
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
        self._rooms: dict[str, Array] = {}
        if vocab_size is not None and max(params.logit_bias, default=0) >= vocab_size:
            beyond = max(params.logit_bias)
            raise ParameterError(f"logit_bias names token {beyond}, but the vocabulary ends at {vocab_size - 1}")
        self._penalties = Penalties(params, prompt_length) if Penalties.wanted(params) else None
        self._grammar = None
        if params.constraint is not None:
            if grammars is None:
                raise ParameterError("constraint needs a tokenizer, and this pipeline has none")
            self._grammar = grammars.grammar(params.constraint)

    def distribution(self, logits: Array, prefix: Sequence[int]) -> Distribution:
        """The distribution after ``prefix`` from its logits ``[vocab_size]``. Raises NumericsError on NaN or +inf, and
        ConstraintError where the constraint cannot be followed."""
        params = self._params
        scores, ids = logits, None
        if self._penalties is not None:
            scores = self._penalties.adjust(scores, prefix)
        if self._grammar is not None:
            ids = self._grammar.allowed(prefix[self._prompt_length :])
            ids = ids[: int(np.searchsorted(ids, scores.size))]
            scores = _possible(scores[ids])  # [s]
        fast = self._sampler if scores.dtype == np.float32 else None
        best, top = _greatest(scores, fast, len(prefix))
        if params.temperature == 0 or scores.size == 1:
            return Distribution.point(best if ids is None else int(ids[best]), scores.dtype)
        if 0 < params.top_k < scores.size:
            kept = fast.top_k(scores, params.top_k) if fast else _top_k(scores, params.top_k)
            scores, ids = scores[kept], kept if ids is None else ids[kept]
        if params.temperature != 1:
            shrinks = params.top_p < 1 or params.min_p > 0
            scores = np.subtract(scores, top, out=self._room("scores", scores) if shrinks else None)
            scores /= max(params.temperature, _COLDEST)
            top = 0.0
        if params.top_p < 1:
            probs = fast.softmax(scores) if fast else softmax(scores, self._room("probs", scores))
            kept = fast.top_p(probs, params.top_p) if fast else _top_p(probs, params.top_p)
            scores, ids = scores[kept], kept if ids is None else ids[kept]
        if params.min_p > 0:
            floor = top + math.log(params.min_p)
            kept = fast.at_least(scores, floor) if fast else np.flatnonzero(scores >= floor)
            scores, ids = scores[kept], kept if ids is None else ids[kept]
        if fast is None:
            return Distribution(ids=ids, scores=scores)
        return Distribution(ids=ids, scores=scores, to_probs=fast.softmax, log_total=partial(fast.log_total, top=top))

    def _room(self, use: str, like: Array) -> Array:
        """Memory that this pipeline's next row uses again: fresh pages cost more than the arithmetic on them."""
        room = self._rooms.get(use)
        if room is None or room.shape != like.shape or room.dtype != like.dtype:
            room = self._rooms[use] = np.empty_like(like)
        return room


def _greatest(scores: Array, sampler: Sampler | None, length: int) -> tuple[int, float]:
    """Place and value of the greatest score, the first of equals."""
    if sampler is not None:
        try:
            best = sampler.argmax(scores)
            return best, float(scores[best])
        except NumericsError:
            pass  # said in the words below
    place = int(np.argmax(scores))  # NaN wins a max, so one look finds it
    top = float(scores[place])
    if not math.isfinite(top):
        raise NumericsError(
            f"the model gave {top} as its greatest logit after {length} tokens: its weights or "
            "its precision are at fault; try --weights f32 or another file"
        )
    return place, top


def _possible(scores: Array) -> Array:
    """Scores of allowed tokens; where the model holds none of them possible, as a draft whose head was pruned
    may, all are alike."""
    return np.zeros_like(scores) if bool((scores == -np.inf).all()) else scores


def _top_k(scores: Array, k: int) -> Array:
    """Ids of the k greatest scores, ascending."""
    least = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > least)
    tied = np.flatnonzero(scores == least)[: k - above.size]
    return np.sort(np.concatenate((above, tied)))


def _top_p(probs: Array, top_p: float) -> Array:
    """Indices of the smallest set of most probable tokens with mass >= top_p, ascending."""
    for count in (_NUCLEUS, probs.size):
        if count < probs.size:
            candidates = np.flatnonzero(probs >= np.partition(probs, -count)[-count])
        else:
            candidates = np.arange(probs.size)
        order = np.argsort(-probs[candidates], kind="stable")
        # Sequential in float64: the sums over the first tokens are the same however many candidates follow.
        mass = np.cumsum(probs[candidates][order], dtype=np.float64)
        if float(mass[-1]) >= top_p or candidates.size == probs.size:
            break
    size = int(np.searchsorted(mass, top_p)) + 1
    return np.sort(candidates[order[:size]])
