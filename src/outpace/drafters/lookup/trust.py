"""How far a source of drafts can be trusted, learnt from how often it was right."""

from __future__ import annotations

_MEMORY = 1 - 1 / 64  # what earlier outcomes weigh at each new one: about the last 64 count; chosen by hand
_FIRST = 2.0  # outcomes that the first assumption is worth; chosen by hand


class Trust:
    """The chance that the next token of a source is right, by the number of tokens that agreed before it.

    Before any outcome was seen, ``m`` agreeing tokens and the one before them that did not make (m + 1) / (m + 3)
    (Laplace's rule of succession); ``head_start`` adds agreement in advance.
    """

    def __init__(self, head_start: int = 0) -> None:
        self._head_start = head_start
        self._right: dict[int, float] = {}
        self._asked: dict[int, float] = {}

    def learn(self, agreed: int, right: bool) -> None:
        """One more outcome after ``agreed`` tokens (below zero: tokens since the source was lost)."""
        bucket = _bucket(agreed)
        self._asked[bucket] = self._asked.get(bucket, 0.0) * _MEMORY + 1
        self._right[bucket] = self._right.get(bucket, 0.0) * _MEMORY + right

    def chance(self, agreed: int) -> float:
        """Probability in (0, 1) that the next token is right."""
        bucket = _bucket(agreed)
        m = agreed + self._head_start if agreed >= 0 else 0
        first = (m + 1) / (m + 3)
        return (self._right.get(bucket, 0.0) + _FIRST * first) / (self._asked.get(bucket, 0.0) + _FIRST)

    def chances(self, agreed: int, count: int, stop_below: float) -> list[float]:
        """P(accepted) of each of the next ``count`` tokens, all before it included; it ends where that falls
        below ``stop_below``."""
        path, found = 1.0, []
        for _ in range(count):
            path *= self.chance(agreed)
            if path < stop_below:
                break
            found.append(path)
            agreed = max(agreed, 0) + 1
        return found


def _bucket(agreed: int) -> int:
    """Each length up to 4 for itself, then by doubling; 64 and more are one."""
    return max(agreed, -3) if agreed <= 4 else 2 + min(agreed, 64).bit_length()
