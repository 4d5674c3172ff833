"""The production's controller under a clock that an enumeration can repeat: a round's seconds follow from its rows."""

from __future__ import annotations

from collections.abc import Sequence

from ..control.controller import AutoController
from ..control.pass_costs import PassCosts
from ..core.protocols import Session
from ..core.types import Proposal, RoundSeconds, Verdict

TARGET_COSTS = PassCosts((1, 2, 3, 4, 8), (1.0, 1.1, 1.2, 1.3, 2.0))
DRAFT_COSTS = PassCosts((1, 8), (0.1, 0.15))


class Timed:
    """A controller whose costs are such that it changes its mind within a few rounds. ``decided``: its budgets."""

    def __init__(self, drafter: str = "draft", prior: float = 0.5) -> None:
        self._controller = AutoController(TARGET_COSTS, {drafter: DRAFT_COSTS}, {drafter: prior}, clock=lambda: 0.0)
        self.decided: list[tuple[int, ...]] = []

    def budgets(self, sessions: Sequence[Session], most: Sequence[int]) -> list[int]:
        found = self._controller.budgets(sessions, most)
        self.decided.append(tuple(found))
        return found

    def observe(
        self,
        sessions: Sequence[Session],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict],
        seconds: RoundSeconds,
    ) -> None:
        for session in sessions:
            session.report.seconds_draft_prefill = 0.0  # by the real clock
        drafted = sum(map(len, proposals))
        target = TARGET_COSTS.of(drafted + len(proposals))
        self._controller.observe(
            sessions, proposals, verdicts, RoundSeconds(DRAFT_COSTS.of(1) * drafted, target, 0.0, 0.0)
        )
