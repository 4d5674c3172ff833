"""Token recycling: what the target found likely after a token is proposed after it again
(Luo et al., arXiv 2408.08696).

A matrix holds the ``top`` likeliest next tokens of every token seen. They are taken from the logits of the last pass
that had the token, rows of rejected drafts included; before the first one, from what followed it in the prompt. The
draft is a tree. Its shape follows from how often the token of each rank was right so far; the matrix fills it. Its
tokens are chosen, not drawn.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..core.errors import ParameterError
from ..core.protocols import Drafter, Parts, Requirements, Session
from ..core.top import top
from ..core.types import Forward, Proposal, Verdict
from .common.extending import Start
from .common.tree import Tree

# P(the token of each rank is the next one) before any outcome was seen; chosen by hand. It weighs as much as two
# outcomes, and of outcomes about the last 64 count.
_CHANCES = (0.5, 0.14, 0.07, 0.04, 0.03, 0.02, 0.015, 0.01)
_FIRST, _MEMORY = 2.0, 1 - 1 / 64


@dataclass(frozen=True)
class Config:
    gamma: int = 7  # nodes of the tree; with the pending token 8 rows, which cost little more than one
    top: int = 8  # next tokens kept of each token
    stop_below: float = 0.15  # P(accepted) of a path below which it is not drafted

    def __post_init__(self) -> None:
        if not 1 <= self.top <= len(_CHANCES):
            raise ParameterError(f"recycle's top must lie between 1 and {len(_CHANCES)}, not {self.top}")
        if not 0 <= self.stop_below <= 1:
            raise ParameterError(f"recycle's stop_below must lie in [0, 1], not {self.stop_below}")


def template(size: int, chances: Sequence[float], stop_below: float = 0.0) -> list[tuple[int, int, float]]:
    """The ``size`` likeliest nodes of a tree where ``chances[r]`` is P(accepted) of a child of rank r, best first. Of
    each: its parent (-1: the pending token), its rank, and P(accepted) of its path, ``stop_below`` or more."""
    nodes: list[tuple[int, int, float]] = []
    waiting = [(-chance, -1, rank) for rank, chance in enumerate(chances)]  # minus the chance of the path
    heapq.heapify(waiting)
    while waiting and len(nodes) < size and -waiting[0][0] >= stop_below:
        chance, parent, rank = heapq.heappop(waiting)
        nodes.append((parent, rank, -chance))
        for below, factor in enumerate(chances):
            heapq.heappush(waiting, (chance * factor, len(nodes) - 1, below))
    return nodes


@dataclass
class _State:
    followers: dict[int, list[int]] = field(default_factory=dict)
    prompt_read: bool = False
    tokens: list[int] | None = None  # of the rows of this round's pass; None where another drafter chose them
    length: int = 0  # of the text after the last round
    asked: float = _FIRST
    right: list[float] = field(default_factory=lambda: [_FIRST * chance for chance in _CHANCES])  # by rank

    def learn(self, before: int, token: int) -> None:
        """``token`` came after ``before``: of which rank was it?"""
        ranked = self.followers.get(before)
        if ranked:
            self.asked = self.asked * _MEMORY + 1
            self.right = [right * _MEMORY for right in self.right]
            if token in ranked:
                self.right[ranked.index(token)] += 1


class Recycle:
    """One matrix a session."""

    needs: Sequence[str] = ()

    def __init__(self, config: Config) -> None:
        self._config = config
        self._states: dict[int, _State] = {}

    def begin(self, session: Session) -> None:
        self._states[session.id] = _State(length=len(session.tokens))

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        return self.extend(sessions, [Start()] * len(sessions), budgets)

    def extend(self, sessions: Sequence[Session], starts: Sequence[Start], budgets: Sequence[int]) -> list[Proposal]:
        return [self._extend(*one) for one in zip(sessions, starts, budgets, strict=True)]

    def _extend(self, session: Session, start: Start, budget: int) -> Proposal:
        state = self._states[session.id]
        if not state.prompt_read:
            state.prompt_read = True
            _read(state.followers, session.tokens[: session.request.prompt_length], self._config.top)
        first = start.path[-1] if start.path else session.pending
        width = self._config.top if session.record.trees else 1
        chances = [right / state.asked for right in state.right[:width]]
        stop_below = max(self._config.stop_below, session.draft.stop_below)
        tree, places = Tree(), {-1: -1}  # places: of the template's nodes in the tree
        for node, (parent, rank, _) in enumerate(template(4 * budget, chances, stop_below)):
            if len(tree.tokens) == budget:
                break
            if parent not in places:
                continue
            above = places[parent]
            ranked = state.followers.get(tree.tokens[above] if above >= 0 else first, ())
            if rank < len(ranked) and not (parent == -1 and ranked[rank] in start.siblings):
                places[node] = tree.add(above, ranked[rank], math.log(chances[rank]))
        state.tokens = [session.pending, *start.path, *tree.tokens]
        return tree.proposal(budget)

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        for session, forward in zip(sessions, seen, strict=True):
            state = self._states[session.id]
            tokens = state.tokens if state.tokens is not None else session.tokens[state.length - 1 :]
            for before, token in pairwise(session.tokens[state.length - 1 :]):
                state.learn(before, token)
            if forward.logits:
                rows = [top(row, self._config.top).tolist() for row in forward.logits[0]]
                state.followers.update(zip(tokens, rows, strict=False))
            state.tokens, state.length = None, len(session.tokens)

    def end(self, session: Session) -> None:
        self._states.pop(session.id, None)


def _read(followers: dict[int, list[int]], text: Sequence[int], top: int) -> None:
    """What followed each token of ``text``, the latest first."""
    for token, following in pairwise(text):
        ranked = followers.setdefault(token, [])
        if following in ranked:
            ranked.remove(following)
        ranked.insert(0, following)
        del ranked[top:]


def requires(config: Config) -> Requirements:
    return Requirements()


def create(config: Config, parts: Parts) -> Drafter:
    return Recycle(config)
