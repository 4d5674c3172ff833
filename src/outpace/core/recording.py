"""A round's draft of one session, recorded node by node while it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import DrafterError
from .types import Distribution, Proposal


@dataclass
class DraftRecord:
    """By node number: all nodes that were drawn, and the chosen ones that are numbered before one of them.

    A drawn token must be tested at the node where it was drawn, whatever happens afterwards: a draft that is dropped
    depending on what was drawn changes the output distribution of ``ratio`` and ``block``. So a draw is recorded when
    it is made (:meth:`Session.draw`), what makes a node impossible is found before the draw (:meth:`check_room`), and
    the loop submits the record, as the proposal that the rule sees, where drafting fails. Later rounds may depend on
    what was drawn in this one, also on draws that the rule discards: their random draws are their own (see Key).

    ``budget``, ``vocab_size``: None where nobody limits them. ``merge``: a node that repeats a sibling's token becomes
    one with it, for rules that need no draft distributions. ``origin``: the source of the nodes that come next, ""
    for the drafter itself. ``error``: what ended this session's draft early; the drafter sets it, the loop reports it.
    """

    base: int = -1  # tokens before the round
    budget: int | None = None
    vocab_size: int | None = None
    trees: bool = True
    merge: bool = False
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    distributions: list[Distribution | None] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    origin: str = ""
    error: Exception | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, distribution: Distribution | None = None, origin: str = "") -> int:
        """Record a node; returns its number. ``distribution``: what it was drawn from, None for a chosen token."""
        if self.merge:
            for node, other in enumerate(self.tokens):
                if other == token and self.parents[node] == parent:
                    return node
        self.tokens.append(token)
        self.parents.append(parent)
        self.distributions.append(distribution)
        self.origins.append(origin or self.origin)
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to ``node``; empty for -1."""
        return Proposal(self.tokens, self.parents).path(node)

    def check_room(self, distribution: Distribution, parent: int) -> None:
        """Raise DrafterError where a token drawn from ``distribution`` behind ``parent`` could not be submitted."""
        if not -1 <= parent < len(self):
            raise DrafterError(f"a token was to be drawn behind node {parent}, but {len(self)} nodes are recorded")
        if self.budget is not None and len(self) >= self.budget:
            raise DrafterError(f"more tokens were to be drawn than the budget of {self.budget}")
        if not self.trees and parent != len(self) - 1:
            raise DrafterError("a tree was to be drawn, but this runtime or acceptance rule takes chains only")
        if (
            self.vocab_size is not None
            and not 0 <= distribution.token(0) <= distribution.token(distribution.size - 1) < self.vocab_size
        ):
            raise DrafterError(f"a draft distribution holds tokens outside the vocabulary of {self.vocab_size}")

    def check(self, proposal: Proposal) -> None:
        """Raise DrafterError unless ``proposal`` begins with the recorded nodes and their draft distributions, and no
        other node of it was drawn."""
        count = len(self)
        same = list(proposal.tokens[:count]) == self.tokens and list(proposal.parents[:count]) == self.parents
        distributions = (
            proposal.draft_distributions if proposal.draft_distributions is not None else [None] * len(proposal)
        )
        if any(distribution is not None for distribution in distributions[count:]):
            raise DrafterError(
                "a proposal holds drawn tokens that are not recorded: draw them with session.draw, so that they can be "
                "submitted when drafting fails"
            )
        if not same or any(
            mine is not distribution for mine, distribution in zip(self.distributions, distributions, strict=False)
        ):
            raise DrafterError(
                "a proposal must begin with the nodes that were drawn, in order and with the distributions that they "
                "were drawn from; nodes chosen before a draw are recorded with session.record.add"
            )

    def proposal(self) -> Proposal:
        """All that is recorded."""
        drawn = any(distribution is not None for distribution in self.distributions)
        origins = self.origins if all(self.origins) else None
        return Proposal(self.tokens, self.parents, self.distributions if drawn else None, origins)
