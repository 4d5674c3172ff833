"""How long answers become: what decides whether a draft's reading of the prompt will pay."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

_GUESS = tuple(round(8 * 2 ** (i / 2)) for i in range(13))  # before any has ended, each is as likely: 8 to 512
_GUESS_WEIGHT = 4.0  # ended answers that the guess counts as
_KEPT = 64


class Lengths:
    """Lengths of ended answers, in tokens, the latest ones, beside the guess."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=_KEPT)

    def add(self, tokens: int) -> None:
        """An answer ended."""
        self._seen.append(tokens)

    def to_come(self, done: int, most: int) -> list[tuple[float, int]]:
        """(chance, tokens) that an answer with ``done`` tokens still brings, ``most`` being all it is allowed.
        Where none was so long, as many again: what has lasted, lasts."""
        known = [(weight, length - done) for weight, length in self._known() if length > done]
        known = known or [(1.0, max(1, done))]
        total = sum(weight for weight, _ in known)
        return [(weight / total, min(most, tokens)) for weight, tokens in known]

    def _known(self) -> Iterator[tuple[float, int]]:
        yield from ((_GUESS_WEIGHT / len(_GUESS), length) for length in _GUESS)
        yield from ((1.0, length) for length in self._seen)
