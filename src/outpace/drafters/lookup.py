"""Draft from the text itself: what followed the last time these words were said
(prompt lookup decoding, Saxena 2023; arXiv 2304.04487 for copying from references).

The longest suffix of the text that occurred before wins, the latest occurrence among equals. As many
tokens are proposed as were matched, so that a short, doubtful match costs few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import ParameterError
from ..core.protocols import Drafter, Parts, Session
from ..core.types import Forward, Proposal, Verdict

NEEDS_DRAFT = False


@dataclass(frozen=True)
class Config:
    gamma: int = 8  # tokens drafted a round, at most
    min_match: int = 3  # tokens that must agree before anything is drafted

    def __post_init__(self) -> None:
        if self.min_match < 1:
            raise ParameterError(f"lookup's min_match must be at least 1, not {self.min_match}")


class SuffixMatches:
    """For every earlier place of a growing text, how many tokens agree with its end, going backwards."""

    def __init__(self) -> None:
        self._tokens = np.empty(256, dtype=np.int64)
        self._agree = np.zeros(256, dtype=np.int64)  # [j]: common suffix of text[: j + 1] and the whole text
        self.length = 0

    def append(self, token: int) -> None:
        """Add one token to the text, in one vector operation over its length."""
        n = self.length
        if n == self._tokens.size:
            self._tokens = np.concatenate((self._tokens, np.empty_like(self._tokens)))
            self._agree = np.concatenate((self._agree, np.zeros_like(self._agree)))
        self._agree[1:n] = self._agree[: max(n - 1, 0)]
        self._agree[:1] = 0
        self._agree[:n] += 1
        self._agree[:n] *= self._tokens[:n] == token
        self._tokens[n] = token
        self.length = n + 1

    def longest(self) -> tuple[int, int]:
        """Length of the longest match and the place after it; (0, 0) when nothing matches."""
        earlier = self._agree[: max(self.length - 1, 0)]
        if not earlier.size:
            return 0, 0
        last = earlier.size - 1 - int(np.argmax(earlier[::-1]))  # among equals the latest
        return int(earlier[last]), last + 1

    def continuation(self, start: int, count: int) -> list[int]:
        """``count`` tokens from ``start`` on; past the end it repeats, as a text in a loop would."""
        period = self.length - start
        return [int(self._tokens[start + i % period]) for i in range(count)]


class Lookup:
    """One index a session over its prompt and output."""

    needs: Sequence[str] = ()

    def __init__(self, config: Config) -> None:
        self._config = config
        self._texts: dict[int, SuffixMatches] = {}

    def begin(self, session: Session) -> None:
        self._texts[session.id] = SuffixMatches()

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        return [self._propose(session, budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _propose(self, session: Session, budget: int) -> Proposal:
        text = self._texts[session.id]
        for token in session.tokens[text.length :]:
            text.append(token)
        matched, start = text.longest()
        if budget < 1 or matched < self._config.min_match:
            return Proposal()
        return Proposal.chain(text.continuation(start, min(budget, matched)))

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def end(self, session: Session) -> None:
        self._texts.pop(session.id, None)


def create(config: Config, parts: Parts) -> Drafter:
    return Lookup(config)
