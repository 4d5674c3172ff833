"""The controller of an engine in which nothing is to be decided."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.protocols import Session
from ..core.types import Proposal, RoundSeconds, Verdict
from .cost_model import CostModel


class FixedController:
    """As many nodes as are allowed (the Controller protocol). It learns what passes cost from every round, once it has
    a ``cost_model`` to correct."""

    def __init__(self) -> None:
        self.cost_model: CostModel | None = None

    def budgets(self, sessions: Sequence[Session], most: Sequence[int]) -> list[int]:
        """As many nodes as are allowed."""
        return list(most)

    def observe(
        self,
        sessions: Sequence[Session],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict],
        seconds: RoundSeconds,
    ) -> None:
        """Learn from a round."""
        if self.cost_model is None:
            return
        attention = 0.0
        for session, proposal, verdict in zip(sessions, proposals, verdicts, strict=True):
            first, more = self.cost_model.attention(len(session.tokens) - len(verdict.path) - 2)
            attention += first + more * len(proposal)
        rows = sum(len(proposal) + 1 for proposal in proposals)
        self.cost_model.observe(rows, attention, {}, sum(len(verdict.path) + 1 for verdict in verdicts), seconds)
