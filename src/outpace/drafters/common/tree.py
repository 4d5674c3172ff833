"""Trees grown level by level under a row budget, best first by the estimated probability that a path is accepted
(EAGLE-2, Li et al., arXiv 2406.16858, sections 4.1 and 4.2; Sequoia, arXiv 2402.12374, for drawn siblings).

Tokens that are *chosen* may be ranked and dropped freely: a tree grows wider than its budget, and the best nodes are
submitted. Tokens that are *drawn* are all submitted: how many each node gets is settled before the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.protocols import Session
from ...core.top import top
from ...core.types import Array, Distribution, Proposal, Rows
from ...kernels.sampling import row_log_total

_CONSIDERED = 64  # most probable tokens of a distribution whose noise is looked at; chosen by hand


@dataclass
class Tree:
    """Nodes in the order of their birth, parents first. ``scores``: log of the estimated probability that the whole
    path down to the node is accepted, never greater than the parent's."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    distributions: list[Distribution | None] = field(default_factory=list)
    level: list[int] = field(default_factory=lambda: [-1])  # the nodes to expand next

    def score(self, node: int) -> float:
        """The node's score; 0 for -1, the pending token."""
        return self.scores[node] if node >= 0 else 0.0

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to ``node``; empty for -1."""
        return Proposal(self.tokens, self.parents).path(node)

    def prefix(self, session: Session, node: int) -> list[int]:
        """The text down to ``node``."""
        return [*session.tokens, *(self.tokens[i] for i in self.path(node))]

    def add(self, parent: int, token: int, log_prob: float, distribution: Distribution | None = None) -> int:
        """A new node; ``log_prob`` is of the token alone."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(self.score(parent) + min(log_prob, 0.0))
        self.distributions.append(distribution)
        return len(self.tokens) - 1

    def descend(self, born: Sequence[int], width: int, floor: float) -> None:
        """Of the nodes ``born`` last, the ``width`` best whose path is accepted with probability ``floor`` are next."""
        least = math.log(floor) if floor > 0 else -math.inf
        able = [node for node in born if self.scores[node] >= least and self.scores[node] > -math.inf]
        self.level = sorted(sorted(able, key=lambda node: (-self.scores[node], node))[:width])

    def proposal(self, budget: int, floor: float = 0.0) -> Proposal:
        """The ``budget`` best nodes, drawn ones in any case; with ``floor``, no less likely ones."""
        least = math.log(floor) if floor > 0 else -math.inf
        drawn = any(distribution is not None for distribution in self.distributions)
        able = [node for node in range(len(self.tokens)) if drawn or self.scores[node] >= least]
        # A parent is never worse than its child and comes first among equals: what is kept is a tree.
        kept = sorted(able if drawn else sorted(able, key=lambda node: (-self.scores[node], node))[:budget])
        place = {-1: -1} | {node: i for i, node in enumerate(kept)}
        parents = [place[self.parents[node]] for node in kept]
        return Proposal(
            [self.tokens[n] for n in kept], parents, [self.distributions[n] for n in kept] if drawn else None
        )


def grow(tree: Tree, session: Session, logits: Rows, *, width: int, children: int, budget: int, levels: int) -> None:
    """Give the nodes of ``tree.level`` children, from the draft's ``logits`` ``[nodes, vocab_size]`` after each.

    Under a rule that uses draft distributions, above temperature 0, tokens are drawn: this level's share of what
    ``levels`` more levels have left of the ``budget``. Otherwise the ``children`` likeliest tokens of every node are
    chosen. The ``width`` best of all children are the next level.
    """
    try:
        tree.descend(_born(tree, session, logits, children, budget, levels), width, session.draft.stop_below)
    except Exception as error:  # ends this tree alone: what has grown is a draft like any other
        session.record.error, tree.level = error, []


def _born(tree: Tree, session: Session, logits: Rows, children: int, budget: int, levels: int) -> list[int]:
    """The children of the nodes of ``tree.level``."""
    distributions = [
        session.pipeline.distribution(row, tree.prefix(session, node))
        for node, row in zip(tree.level, logits, strict=True)
    ]
    if session.rule.NEEDS_DISTRIBUTIONS and session.request.params.temperature > 0:
        return _draw(tree, session, distributions, children, -(-(budget - len(tree.tokens)) // levels))
    born: list[int] = []
    for node, distribution, row in zip(tree.level, distributions, logits, strict=True):
        position = len(session.tokens) + len(tree.path(node))
        born += [tree.add(node, *found) for found in likeliest(session, distribution, row, position, children)]
    return born


def _draw(tree: Tree, session: Session, distributions: Sequence[Distribution], children: int, rows: int) -> list[int]:
    """Draw ``rows`` tokens in all, at most ``children`` behind a node, where they are likeliest to be accepted: without
    replacement among siblings, each with the distribution of its own draw. A sibling's chance, which must be known
    before it is drawn, is taken to be the probability of the distribution's token of that rank."""
    chances = [
        (tree.score(node) + value, -place, -rank)  # ties go to the earlier node and sibling
        for place, (node, distribution) in enumerate(zip(tree.level, distributions, strict=True))
        for rank, value in enumerate(_top(distribution, min(children, rows))[1].tolist())
        if value > -math.inf
    ]
    best = sorted(chances, reverse=True)[:rows]
    born = []
    for place, (node, distribution) in enumerate(zip(tree.level, distributions, strict=True)):
        left = distribution
        for score, _, rank in [chance for chance in best if chance[1] == -place]:
            if rank:
                rest = left.without([tree.tokens[-1]])
                assert rest is not None  # there is a token of this rank
                left = rest
            token = session.record.tokens[session.draw(left, node)]
            born.append(tree.add(node, token, score - tree.score(node), left))
    return born


def likeliest(
    session: Session, distribution: Distribution, logits: Array, position: int, count: int
) -> list[tuple[int, float]]:
    """The ``count`` tokens most likely to be the target's at ``position``, with the log of the estimated
    probability: the draft's, or under a rule whose noise is known beforehand what remains open given the noise."""
    if distribution.size == 1:  # greedy: the logits say what comes second
        ids = top(logits, count)
        values = logits[ids] - row_log_total(logits)
        found = [(int(i), float(v)) for i, v in zip(ids, values, strict=True) if v > -math.inf]
        first = distribution.token(0)  # penalties and grammar have had their say here
        rest = [pair for pair in found if pair[0] != first]
        return [(first, found[0][1]), *rest][:count]
    if not session.rule.SHARED_NOISE:
        ids, values = _top(distribution, count)
    else:
        ids, values = _top(distribution, _CONSIDERED)
        order = np.argsort(ids)
        ids = ids[order]
        values = values[order] + session.rng.gumbel(position, ids)
        values -= row_log_total(values)
        order = top(values, count)
        ids, values = ids[order], values[order]
    return [(int(i), float(v)) for i, v in zip(ids, values, strict=True) if v > -math.inf]


def _top(distribution: Distribution, count: int) -> tuple[Array, Array]:
    """Ids and log probabilities of the ``count`` most probable tokens."""
    at = top(distribution.probs, count)
    with np.errstate(divide="ignore"):
        values = np.log(distribution.probs[at])
    return (at if distribution.ids is None else distribution.ids[at]), values
