"""What the target itself thought of a token."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from ..core.top import top as greatest
from ..core.types import Array
from ..kernels.sampling import row_log_total


class TokenLogprobs(NamedTuple):
    """A token, its log-probability, and the most probable tokens of its place, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class LogprobLog:
    """The :class:`TokenLogprobs` of an answer as it grows, 12 bytes an alternative: as objects they take ten times
    that, and a long answer of many samples that nobody reads is held whole."""

    def __init__(self) -> None:
        self._tokens, self._logprobs = array("q"), array("d")
        self._ids, self._values = array("i"), array("d")  # of the alternatives
        self._ends = array("q")  # how many alternatives there are up to each token

    def append(self, one: TokenLogprobs) -> None:
        self._tokens.append(one.token)
        self._logprobs.append(one.logprob)
        self._ids.extend(token for token, _ in one.top)
        self._values.extend(value for _, value in one.top)
        self._ends.append(len(self._ids))

    def between(self, start: int, end: int) -> list[TokenLogprobs]:
        """Those of the tokens ``start`` to ``end - 1``, as far as there are any."""
        found = []
        for i in range(start, min(end, len(self._tokens))):
            places = slice(self._ends[i - 1] if i else 0, self._ends[i])
            top = list(zip(self._ids[places], self._values[places], strict=True))
            found.append(TokenLogprobs(self._tokens[i], self._logprobs[i], top))
        return found


def token_logprobs(logits: Array, token: int, top: int) -> TokenLogprobs:
    """Natural logarithms under the target's own softmax of ``logits`` ``[vocab_size]``, before temperature,
    penalties and truncation. ``top``: how many alternatives; ties go to the lower id."""
    total = row_log_total(logits)
    best = [int(place) for place in greatest(logits, top)] if top else []
    return TokenLogprobs(token, float(logits[token]) - total, [(i, float(logits[i]) - total) for i in best])
