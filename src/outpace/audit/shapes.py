"""Drafters of every proposal shape, for toys: chains and trees, drawn, chosen and mixed, and one that hesitates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.protocols import Drafter, LogitsPipeline, Session
from ..core.top import top
from ..core.types import Distribution, Forward, Proposal, Verdict
from .drive import plain
from .toy import LogitsOf

ProposeOne = Callable[[Session, int], Proposal]


@dataclass
class Scripted:
    """A drafter from a function of (session, budget); it keeps a record of what it was told."""

    propose_one: ProposeOne
    needs: Sequence[str] = ()
    open: set[int] = field(default_factory=set)
    asked: list[tuple[int, int]] = field(default_factory=list)  # session, budget
    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)

    def begin(self, one: Session) -> None:
        self.open.add(one.id)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        self.asked += [(one.id, budget) for one, budget in zip(sessions, budgets, strict=True)]
        return [self.propose_one(one, budget) for one, budget in zip(sessions, budgets, strict=True)]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        self.verdicts += [(one.id, verdict) for one, verdict in zip(sessions, verdicts, strict=True)]

    def end(self, one: Session) -> None:
        self.open.discard(one.id)


@dataclass
class Controlled:
    """Drafts in some rounds and not in others: ``decide`` sees the session and the drafts discarded so far,
    those behind the first refusal included. Takes one session at a time."""

    drafter: Drafter
    decide: Callable[[Session, Sequence[int]], bool]
    needs: Sequence[str] = ()
    discarded: list[int] = field(default_factory=list)
    proposed: Proposal = field(default_factory=Proposal)

    def begin(self, session: Session) -> None:
        self.drafter.begin(session)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        self.proposed = Proposal()
        if self.decide(sessions[0], self.discarded):
            [self.proposed] = self.drafter.propose(sessions, budgets)
        return [self.proposed]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        self.discarded += [t for i, t in enumerate(self.proposed.tokens) if i not in verdicts[0].path]
        self.drafter.observe(sessions, verdicts, seen)

    def end(self, session: Session) -> None:
        self.drafter.end(session)


def by_the_text(session: Session, discarded: Sequence[int]) -> bool:
    """Draft unless the text ends with token 0: depends on committed tokens alone."""
    return session.pending != 0


def by_the_discarded(session: Session, discarded: Sequence[int]) -> bool:
    """Draft unless the last discarded draft was token 0: depends on draws that no text shows."""
    return not discarded or discarded[-1] != 0


def right_first(target: LogitsOf, vocab_size: int, right: int | Callable[[Session], int]) -> ProposeOne:
    """A full chain whose first ``right`` tokens are what plain decoding will say, and the next is not."""

    def propose(one: Session, budget: int) -> Proposal:
        tokens = plain(target, one.rng, one.request.params, one.tokens, budget, generated=len(one.generated))
        wrong = right if isinstance(right, int) else right(one)
        for i in range(wrong, budget):
            tokens[i] = (tokens[i] + 1) % vocab_size
        return Proposal.chain(tokens)

    return propose


def distribution_after(logits_of: LogitsOf, pipeline: LogitsPipeline, prefix: Sequence[int]) -> Distribution:
    """The distribution that a pipeline makes of a toy's logits."""
    return pipeline.distribution(np.asarray(logits_of(tuple(prefix)), dtype=np.float64), prefix)


class _Tree:
    """A tree of drawn and chosen nodes, which is the session's record of this round."""

    def __init__(self, one: Session) -> None:
        self._session, self.record = one, one.record

    def prefix(self, node: int) -> list[int]:
        return [*self._session.tokens, *(self.record.tokens[above] for above in self.record.path(node))]

    def grow(self, widths: Sequence[int], budget: int, children: Callable[[_Tree, int, int, int], None]) -> Proposal:
        """Level by level: ``children(tree, parent, width, depth)`` adds the children of one node."""
        level = [-1]
        for depth, width in enumerate(widths):
            start = len(self.record)
            for parent in level:
                children(self, parent, min(width, budget - len(self.record)), depth)
            level = list(range(start, len(self.record)))
        return self.record.proposal()


def sampled_tree(
    draft: LogitsOf, widths: Sequence[int], *, replacement: bool, pipeline: LogitsPipeline | None = None
) -> ProposeOne:
    """Siblings drawn from the draft's distribution, each with the distribution of its own draw."""

    def propose(one: Session, budget: int) -> Proposal:
        def children(tree: _Tree, parent: int, width: int, depth: int) -> None:
            distribution: Distribution | None = distribution_after(draft, pipeline or one.pipeline, tree.prefix(parent))
            seen: list[int] = []
            for _ in range(width):
                if not replacement and seen:
                    assert distribution is not None
                    distribution = distribution.without(seen)
                if distribution is None:
                    return
                seen.append(one.record.tokens[one.draw(distribution, parent)])

        return _Tree(one).grow(widths, budget, children)

    return propose


def top_tree(draft: LogitsOf, widths: Sequence[int]) -> ProposeOne:
    """The most probable continuations, chosen and not drawn."""

    def propose(one: Session, budget: int) -> Proposal:
        def children(tree: _Tree, parent: int, width: int, depth: int) -> None:
            logits = np.asarray(draft(tuple(tree.prefix(parent))))
            for token in top(logits, max(width, 0)).tolist():
                tree.record.add(token, parent)

        return _Tree(one).grow(widths, budget, children)

    return propose


def mixture(chosen: LogitsOf, draft: LogitsOf, depth: int, *, keep_duplicates: bool) -> ProposeOne:
    """At every node a chosen token first, then a drawn one. The drawn one either cannot repeat the chosen
    one, because its distribution leaves it out, or may repeat it and is submitted all the same."""

    def propose(one: Session, budget: int) -> Proposal:
        def children(tree: _Tree, parent: int, width: int, level: int) -> None:
            if width < 1:
                return
            first = int(np.asarray(chosen(tuple(tree.prefix(parent)))).argmax())
            tree.record.add(first, parent)
            distribution: Distribution | None = distribution_after(draft, one.pipeline, tree.prefix(parent))
            if distribution is not None and not keep_duplicates:
                distribution = distribution.without([first])
            if width > 1 and distribution is not None:
                one.draw(distribution, parent)

        return _Tree(one).grow([2] * depth, budget, children)

    return propose


def mixed_chain(chosen: LogitsOf, draft: LogitsOf, drawn: Sequence[bool]) -> ProposeOne:
    """A chain whose tokens are drawn at the depths where ``drawn`` says so, and chosen at the others."""

    def propose(one: Session, budget: int) -> Proposal:
        def children(tree: _Tree, parent: int, width: int, depth: int) -> None:
            if width > 0 and drawn[depth]:
                one.draw(distribution_after(draft, one.pipeline, tree.prefix(parent)), parent)
            elif width > 0:
                tree.record.add(int(np.asarray(chosen(tuple(tree.prefix(parent)))).argmax()), parent)

        return _Tree(one).grow([1] * len(drawn), budget, children)

    return propose
