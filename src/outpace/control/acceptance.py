"""How many drafted nodes are accepted: learnt from every round, by session and drafter.

Nodes are told apart by their place in the proposal. In a chain that is the depth; in a tree a smaller budget would
have kept the first nodes, so that a node's place says what one more unit of budget brings. What is counted is whether
a node was accepted *given that the drafter was allowed to propose it*: a drafter that finds nothing, or stops where it
is not confident, is charged for it there. A drafter that tells its chances beforehand is taken at its word instead
(:mod:`.controller`); its counts only say how much of it is accepted in general.

An example: a prior by which a proposed node is accepted with 0.7, given the one before it, and always proposed; then
one round with a budget of 4, in which the drafter proposes 3 nodes and 2 are accepted.

    place                               0      1      2      3
    prior: P(accepted)                0.700  0.490  0.343  0.240
    proposed, accepted in the round    1 1    1 1    1 0    0 0
    P(proposed) afterwards            1.000  1.000  1.000  0.667
    P(accepted) afterwards            0.739  0.583  0.347  0.138

Three nodes were tested, of which the prior expected 2.1 to be accepted and 2 were: the level is
(2 + 12) / (2.1 + 12) = 0.993, and given the one before it a node is accepted with 0.7 * 0.993 = 0.695. That counts as 6
rounds beside the one seen: place 0 has (1 + 6 * 0.695) / 7 = 0.739, place 1 (1 + 6 * 0.739 * 0.695) / 7 = 0.583,
place 2 (0 + 6 * 0.583 * 0.695) / 7 = 0.347. At place 3 nothing was proposed: (0 + 2 * 1) / (1 + 2) = 0.667, where the
prior counts as 2 rounds, and (0 + 6 * 0.347 * 0.695 * 0.667) / 7 = 0.138.
"""

from __future__ import annotations

from typing import Protocol

from ..core.types import Proposal, Verdict

# Weights in rounds, chosen by hand.
_ACCEPT_WEIGHT = 6.0  # rounds that the prior of a place's acceptance counts for
_PROPOSE_WEIGHT = 2.0  # the same for whether a node is proposed: that is seen in every round, and varies less
_LEVEL_WEIGHT = 12.0  # tested nodes that the prior level of 1 counts for
_IDLE_KEEP = 0.99  # what counts are multiplied by for each round in which the drafter was not at work
_MOST = 0.995  # the greatest probability of a node given the one before it: nothing is certain


class Forecast(Protocol):
    """What is expected of the node at every place, the first of which is 0."""

    def accept_prob(self, place: int) -> float:
        """P(the node at ``place`` is accepted | so many are allowed)."""

    def propose_prob(self, place: int) -> float:
        """P(a node is proposed at ``place`` | so many are allowed)."""


class Prior:
    """The forecast for a drafter that was never seen at work: the same at every place, given the one before.
    ``accept``: P(a node is accepted | it was proposed), ``propose``: P(one is proposed)."""

    def __init__(self, accept: float = 0.7, propose: float = 0.98) -> None:
        self._accept, self._propose = accept, propose

    def accept_prob(self, place: int) -> float:
        return (self._accept * self._propose) ** (place + 1)

    def propose_prob(self, place: int) -> float:
        return self._propose ** (place + 1)


class Acceptance:
    """Counts that fade by ``keep`` a round, beside a prior: a :class:`Prior`, or what all sessions together have shown.

    A place's rate is a beta posterior. Before a place has counts of its own it follows from the one before it, by the
    prior's ratio times the session's level (nodes accepted / nodes that the prior expected to be): so a few rounds say
    something about every place."""

    def __init__(self, prior: Forecast, *, keep: float = 0.97, trust: float = 1.0) -> None:
        """``trust``: in the prior, times the usual."""
        self._prior, self._keep, self._trust = prior, keep, trust
        self.rounds = 0
        # By place: rounds in which a node was allowed, accepted, proposed; and tested: it was proposed, and the node
        # before it was accepted.
        self._allowed: list[float] = []
        self._accepted: list[float] = []
        self._proposed: list[float] = []
        self._tested: list[float] = []
        self._forecast: tuple[list[float], list[float]] = ([], [])

    def observe(self, budget: int, proposal: Proposal, verdict: Verdict, idle: int = 0) -> None:
        """A round in which the drafter was allowed ``budget`` nodes, after ``idle`` rounds in which it was not at
        work: what it showed before these says less about the text of today."""
        self.rounds += 1
        keep = self._keep * _IDLE_KEEP**idle
        self._forecast = ([], [])
        path = {-1, *verdict.path}
        for values in (self._allowed, self._accepted, self._proposed, self._tested):
            values[:] = [value * keep for value in values]
            values.extend([0.0] * (budget - len(values)))
        for place in range(budget):
            self._allowed[place] += 1
            self._accepted[place] += place in path
            self._proposed[place] += place < len(proposal)
            self._tested[place] += place < len(proposal) and place - 1 in path

    def accept_prob(self, place: int) -> float:
        """P(the node at ``place`` is accepted | so many are allowed)."""
        return self.forecast(place + 1)[0][place]

    def propose_prob(self, place: int) -> float:
        """P(a node is proposed at ``place`` | so many are allowed)."""
        return self.forecast(place + 1)[1][place]

    def forecast(self, most: int) -> tuple[list[float], list[float]]:
        """For at least the first ``most`` places: the probabilities that the node is accepted, and that it is
        proposed."""
        accept_probs, propose_probs = self._forecast
        if len(accept_probs) < most:
            level = self._level()
            for place in range(len(accept_probs), most):
                accepted, before = (accept_probs[-1], propose_probs[-1]) if place else (1.0, 1.0)
                proposes = min(1.0, _ratio(self._prior.propose_prob, place))
                weight = self._trust * _ACCEPT_WEIGHT
                rounds = self._allowed[place] if place < len(self._allowed) else 0.0
                proposed = before * proposes
                if rounds:
                    proposed = (self._proposed[place] + _PROPOSE_WEIGHT * proposed) / (rounds + _PROPOSE_WEIGHT)
                accepted *= _scaled(self._given(place), level) * min(1.0, proposed / before)
                if rounds:
                    accepted = (self._accepted[place] + weight * accepted) / (rounds + weight)
                accept_probs.append(accepted)
                propose_probs.append(proposed)
        return accept_probs, propose_probs

    def _given(self, place: int) -> float:
        """The prior's P(the node is accepted | it was proposed, and the one before was accepted)."""
        return _ratio(self._prior.accept_prob, place) / max(1e-9, _ratio(self._prior.propose_prob, place))

    def _level(self) -> float:
        expected = sum(n * self._given(place) for place, n in enumerate(self._tested) if n)
        weight = self._trust * _LEVEL_WEIGHT
        return (sum(self._accepted) + weight) / (expected + weight)


def _ratio(of, place: int) -> float:  # type: ignore[no-untyped-def]  # a bound method of Forecast
    return of(place) / max(1e-9, of(place - 1)) if place else of(0)


def _scaled(ratio: float, level: float) -> float:
    """A ratio at another level; in a chain it cannot pass 1, in a tree a later node may be the better one."""
    return min(ratio * level, max(_MOST, ratio))
