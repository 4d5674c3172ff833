"""How many nodes each session of a round may draft: the allocation that brings the most tokens a second.

An example: one session, whose nodes are accepted with 0.80, 0.64, 0.51 and 0.41 and always proposed. A drafting step
takes 6 ms; a target pass takes 40, 42, 44, 50 and 56 ms over 1 to 5 rows.

    nodes      expected tokens                  milliseconds      tokens a second
      0        1                                40                    25.0
      1        1 + 0.80             = 1.80      42 +  6 = 48          37.5
      2        1 + 0.80 + 0.64      = 2.44      44 + 12 = 56          43.6
      3        ... + 0.51           = 2.95      50 + 18 = 68          43.4
      4        ... + 0.41           = 3.36      56 + 24 = 80          42.0

Two nodes are allocated. Several sessions share the pass: the next node then goes to the session for which it brings
the most expected tokens for the seconds it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cost_model import CostModel

_HOPELESS = 0.8  # of the best rate: so far below it, more nodes will not reach it again; chosen by hand


@dataclass(frozen=True)
class Candidate:
    """What one session may do this round. ``entries``: cached tokens. ``most``: nodes that it may draft; ``least``:
    nodes that it drafts in any case. ``accept_probs``, ``propose_probs``: for each node, by place, the probabilities
    that it is accepted and that it is proposed (:mod:`.acceptance`)."""

    drafter: str
    entries: int
    most: int = 0
    least: int = 0
    accept_probs: Sequence[float] = ()
    propose_probs: Sequence[float] = ()


@dataclass(frozen=True)
class Allocation:
    """Nodes for each session, the tokens expected from the round, and its seconds. ``node_seconds``: what each node
    adds, on average: rows do not cost alike, but in steps."""

    nodes: list[int]
    tokens: float
    seconds: float
    node_seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class _Round:
    """A round that is made larger node by node."""

    def __init__(self, candidates: Sequence[Candidate], cost_model: CostModel) -> None:
        self._candidates, self._cost_model = candidates, cost_model
        self.nodes = [0] * len(candidates)
        self.tokens = self._rows = float(len(candidates))
        parts = [cost_model.attention(candidate.entries) for candidate in candidates]
        self._attention, self._each = sum(one for one, _ in parts), [more for _, more in parts]
        self._depths: dict[str, list[int]] = {}  # by drafter: sessions that take part in each step
        self._steps: dict[str, float] = {}

    def _one_more(self, i: int) -> tuple[float, float]:
        """The probability that the session's next node is proposed, and the drafting steps that it adds."""
        candidate, place = self._candidates[i], self.nodes[i]
        depths = self._depths.get(candidate.drafter, [])
        taking_part = depths[place] if place < len(depths) else 0
        step = self._cost_model.step
        wider = step(candidate.drafter, taking_part + 1) - step(candidate.drafter, taking_part)
        # Of a drafter that stops early, the steps that it is expected to make; looking is one in any case.
        return candidate.propose_probs[place], wider * (candidate.propose_probs[place - 1] if place else 1.0)

    def worth(self, i: int, row: float) -> float:
        """Tokens a second that the session's next node brings, where a row costs ``row`` seconds."""
        candidate = self._candidates[i]
        proposed, steps = self._one_more(i)
        drafting, before = self._cost_model.drafting, self._steps.get(candidate.drafter, 0.0)
        cost = proposed * (row + self._each[i]) + drafting(candidate.drafter, before + steps)
        return candidate.accept_probs[self.nodes[i]] / max(1e-12, cost - drafting(candidate.drafter, before))

    def row(self) -> float:
        """Seconds of one more row."""
        target = self._cost_model.target
        return max(0.0, target(self._rows + 1, self._attention) - target(self._rows, self._attention))

    def add(self, i: int) -> None:
        candidate, place = self._candidates[i], self.nodes[i]
        proposed, steps = self._one_more(i)
        self.nodes[i] += 1
        self.tokens += candidate.accept_probs[place]
        self._rows += proposed
        self._attention += proposed * self._each[i]
        depths = self._depths.setdefault(candidate.drafter, [])
        if place == len(depths):
            depths.append(0)
        depths[place] += 1
        self._steps[candidate.drafter] = self._steps.get(candidate.drafter, 0.0) + steps

    def seconds(self) -> float:
        cost_model = self._cost_model
        seconds = cost_model.target(self._rows, self._attention) + cost_model.rest(self.tokens)
        return seconds + sum(cost_model.drafting(name, steps) for name, steps in self._steps.items())


def allocate(candidates: Sequence[Candidate], cost_model: CostModel) -> Allocation:
    """The nodes that make the round's expected tokens a second the most. Nodes are taken in the order of what they
    bring for what they cost, within a session in their own order; all cases of "the first so many" are compared,
    because the cost of rows is no convex curve."""
    round_ = _Round(candidates, cost_model)
    for i, candidate in enumerate(candidates):
        for _ in range(candidate.least):
            round_.add(i)
    nodes, tokens, seconds = list(round_.nodes), round_.tokens, round_.seconds()
    count, before = sum(nodes), seconds
    open_ = [i for i, candidate in enumerate(candidates) if candidate.most > candidate.least]
    while open_:
        now_row = round_.row()
        i = open_[0] if len(open_) == 1 else max(open_, key=lambda i: round_.worth(i, now_row))
        round_.add(i)
        if round_.nodes[i] == candidates[i].most:
            open_.remove(i)
        now = round_.seconds()
        if round_.tokens * seconds > tokens * now:
            nodes, tokens, seconds = list(round_.nodes), round_.tokens, now
        elif round_.tokens * seconds < _HOPELESS * tokens * now:
            break
    node_seconds = (seconds - before) / (sum(nodes) - count) if sum(nodes) > count else 0.0
    return Allocation(nodes, tokens, seconds, node_seconds)


def without_drafts(candidates: Sequence[Candidate], cost_model: CostModel) -> Allocation:
    """The round without drafting."""
    only = [Candidate(candidate.drafter, candidate.entries) for candidate in candidates]
    return allocate(only, cost_model)
