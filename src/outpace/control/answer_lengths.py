"""How long answers become: it decides whether a draft model's prefill of the prompt will pay."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

_PRIOR = tuple(round(8 * 2 ** (i / 2)) for i in range(13))  # tokens, 8 to 512, equally likely; chosen by hand
_PRIOR_WEIGHT = 4.0  # ended answers that the prior counts as; chosen by hand
_KEPT = 64  # answers


class AnswerLengths:
    """Lengths of the latest ended answers, in tokens, beside a prior."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=_KEPT)

    def add(self, tokens: int) -> None:
        """An answer ended."""
        self._seen.append(tokens)

    def remaining(self, done: int, most: int) -> list[tuple[float, int]]:
        """(probability, tokens) that an answer with ``done`` tokens still brings; ``most`` is all it is allowed.
        Where no answer was so long, as many again are expected."""
        longer = [(weight, length - done) for weight, length in self._weighted() if length > done]
        longer = longer or [(1.0, max(1, done))]
        total = sum(weight for weight, _ in longer)
        return [(weight / total, min(most, tokens)) for weight, tokens in longer]

    def _weighted(self) -> Iterator[tuple[float, int]]:
        yield from ((_PRIOR_WEIGHT / len(_PRIOR), length) for length in _PRIOR)
        yield from ((1.0, length) for length in self._seen)
