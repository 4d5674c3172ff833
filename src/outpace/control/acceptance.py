"""How many drafts stand: learnt from every round, by session and drafter.

Nodes are told apart by their place in the proposal. In a chain that is the depth; in a tree a smaller budget would
have kept the first nodes, so that a node's place says what one more unit of budget brings. What is counted is whether
a node stood *given that the drafter was allowed to propose it*: a drafter that finds nothing, or stops where it is
not confident, is charged for it there. A drafter that tells its chances beforehand is taken at its word instead
(:mod:`.controller`); its counts only say what is believed of it.
"""

from __future__ import annotations

from typing import Protocol

from ..core.types import Proposal, Verdict

_WEIGHT = 6.0  # rounds that what was believed of a place counts for
_COMES_WEIGHT = 2.0  # the same for whether a node is proposed: that is seen in every round, and varies less
_LEVEL_WEIGHT = 12.0  # tests that the usual level counts for
_AGING = 0.99  # a round without drafting
_MOST = 0.995  # nothing is certain


class Forecast(Protocol):
    """What is believed of the nodes at every place."""

    def stands(self, place: int) -> float:
        """P(the node at ``place`` stands | so many are allowed)."""

    def comes(self, place: int) -> float:
        """P(a node is proposed at ``place`` | so many are allowed)."""


class Guess:
    """The forecast for a drafter that was never seen at work: the same at every place, given the one before.
    ``stands``: P(a node stands | it was proposed), ``comes``: P(one is proposed)."""

    def __init__(self, stands: float = 0.7, comes: float = 0.98) -> None:
        self._stands, self._comes = stands, comes

    def stands(self, place: int) -> float:
        return (self._stands * self._comes) ** (place + 1)

    def comes(self, place: int) -> float:
        return self._comes ** (place + 1)


class Acceptance:
    """Counts that fade by ``keep`` a round, on top of what was believed before: a guess, or what all sessions
    together have shown. A place's rate is a beta posterior. Before a place has counts of its own it follows from the
    one before it, by the ratio believed before times the session's level (drafts that stood / that were expected to):
    so a few rounds say something about every place."""

    def __init__(self, before: Forecast, *, keep: float = 0.97, trust: float = 1.0) -> None:
        """``trust``: in what was believed before, times the usual."""
        self._before, self._keep, self._trust = before, keep, trust
        self.rounds = 0
        self._allowed: list[float] = []
        self._stood: list[float] = []
        self._made: list[float] = []
        self._tested: list[float] = []  # rounds in which it was proposed, and the node before stood
        self._forecast: tuple[list[float], list[float]] = ([], [])

    def observe(self, budget: int, proposal: Proposal, verdict: Verdict, idle: int = 0) -> None:
        """A round in which the drafter was allowed ``budget`` nodes, after ``idle`` rounds in which it was not at
        work: what it showed before these says less about the text of today."""
        self.rounds += 1
        keep = self._keep * _AGING**idle
        self._forecast = ([], [])
        path = {-1, *verdict.path}
        for values in (self._allowed, self._stood, self._made, self._tested):
            values[:] = [value * keep for value in values]
            values.extend([0.0] * (budget - len(values)))
        for place in range(budget):
            self._allowed[place] += 1
            self._stood[place] += place in path
            self._made[place] += place < len(proposal)
            self._tested[place] += place < len(proposal) and place - 1 in path

    def stands(self, place: int) -> float:
        """P(the node at ``place`` stands | so many are allowed)."""
        return self.forecast(place + 1)[0][place]

    def comes(self, place: int) -> float:
        """P(a node is proposed at ``place`` | so many are allowed)."""
        return self.forecast(place + 1)[1][place]

    def forecast(self, most: int) -> tuple[list[float], list[float]]:
        """For at least the first ``most`` places: the chances that the node stands, and that it is proposed."""
        standing, coming = self._forecast
        if len(standing) < most:
            level = self._level()
            for place in range(len(standing), most):
                stood, came = (standing[-1], coming[-1]) if place else (1.0, 1.0)
                comes, weight = min(1.0, _ratio(self._before.comes, place)), self._trust * _WEIGHT
                rounds = self._allowed[place] if place < len(self._allowed) else 0.0
                now = came * comes
                if rounds:
                    now = (self._made[place] + _COMES_WEIGHT * now) / (rounds + _COMES_WEIGHT)
                stood *= _scaled(self._given(place), level) * min(1.0, now / came)
                if rounds:
                    stood = (self._stood[place] + weight * stood) / (rounds + weight)
                standing.append(stood)
                coming.append(now)
        return standing, coming

    def _given(self, place: int) -> float:
        """What was believed before of P(the node stands | it was proposed, and the one before stood)."""
        return _ratio(self._before.stands, place) / max(1e-9, _ratio(self._before.comes, place))

    def _level(self) -> float:
        expected = sum(n * self._given(place) for place, n in enumerate(self._tested) if n)
        weight = self._trust * _LEVEL_WEIGHT
        return (sum(self._stood) + weight) / (expected + weight)


def _ratio(of, place: int) -> float:  # type: ignore[no-untyped-def]  # a bound method of Forecast
    return of(place) / max(1e-9, of(place - 1)) if place else of(0)


def _scaled(ratio: float, level: float) -> float:
    """A ratio at another level; in a chain it cannot pass 1, in a tree a later node may be the better one."""
    return min(ratio * level, max(_MOST, ratio))
