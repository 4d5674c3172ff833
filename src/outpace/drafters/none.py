"""Plain decoding: propose nothing, so that every round is one target row and one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.protocols import Drafter, Parts, Requirements, Session
from ..core.types import Forward, Proposal, Verdict


@dataclass(frozen=True)
class Config:
    gamma: int = 0  # tokens drafted a round


class _None:
    needs: Sequence[str] = ()

    def begin(self, session: Session) -> None: ...

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        return [Proposal() for _ in sessions]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def end(self, session: Session) -> None: ...


def requires(config: Config) -> Requirements:
    return Requirements()


def create(config: Config, parts: Parts) -> Drafter:
    return _None()
