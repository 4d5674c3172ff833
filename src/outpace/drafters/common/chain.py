"""Chains of drawn tokens: what all drafters that draw one token behind another share."""

from __future__ import annotations

import math

from ...core.protocols import Session
from ...core.types import Array, Distribution, Proposal
from ...kernels.sampling import row_log_total
from .extending import Start

_GREEDY_EXPONENT = 0.7  # p ** 0.7 is how often a first choice of probability p was the target's (docs/log.md)


def confidence(distribution: Distribution, logits: Array, token: int) -> float:
    """P(the token is accepted), as the draft sees it: its probability of the token that it drew. Greedily that is
    always 1, so the softmax probability is used, to the power of 0.7: the target's first choice is the draft's own more
    often than that probability says."""
    return (
        distribution.prob(token)
        if distribution.size > 1
        else math.exp(float(logits[token]) - row_log_total(logits)) ** _GREEDY_EXPONENT
    )


class Chain:
    """One session's chain in the making. ``going``: whether it takes more tokens, ``budget`` at most."""

    def __init__(self, session: Session, budget: int, start: Start = Start()) -> None:  # noqa: B008  # immutable
        self._session, self._budget, self._start = session, budget, start
        self._node = start.node - 1 if start.path else -1  # behind a path the tree is a chain so far
        self._accepted = 1.0  # estimated probability that the whole path so far is accepted
        self.tokens: list[int] = []
        self._distributions: list[Distribution | None] = []
        self.going = budget > 0

    @property
    def path(self) -> list[int]:
        """Tokens behind the text so far."""
        return [*self._start.path, *self.tokens]

    @property
    def room(self) -> int:
        """Tokens that it may still take."""
        return self._budget - len(self.tokens)

    def draw(self, logits: Array) -> None:
        """Draw the next token, from the draft's logits ``[vocab_size]``. What fails here ends this chain alone: its
        earlier tokens are drafts like any others."""
        session = self._session
        self.going = False
        try:
            distribution: Distribution | None = session.pipeline.distribution(logits, [*session.tokens, *self.path])
            if not self.tokens and session.rule.NEEDS_DISTRIBUTIONS and distribution is not None:
                distribution = distribution.without(self._start.siblings)
            if distribution is None:  # the earlier siblings leave nothing of it
                return
            self._node = session.draw(distribution, self._node)
            self.tokens.append(session.record.tokens[self._node])
            self._distributions.append(distribution)
            if session.draft.stop_below > 0:
                self._accepted *= confidence(distribution, logits, self.tokens[-1])
        except Exception as error:
            session.record.error = error
        else:
            self.going = self.room > 0 and self._accepted >= session.draft.stop_below

    def proposal(self) -> Proposal:
        return Proposal.chain(self.tokens, self._distributions if self._session.rule.NEEDS_DISTRIBUTIONS else None)
