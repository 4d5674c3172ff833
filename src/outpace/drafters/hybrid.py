"""Several drafters in one tree.

Each member drafts behind what the members before it have drafted ("extend": where they made a chain, at its end), or
all draft from the pending token ("beside"). A drawn token that repeats an earlier sibling's would be wrong to drop: it
is drawn from its law with the earlier siblings' tokens taken out, or stays in the tree as a test that fails, and takes
its law's mass out of the residual (the recursive rule of arXiv 2305.09781, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import DrafterError, ParameterError
from ..core.prefixes import Share, shares_of
from ..core.protocols import Drafter, Parts, Session
from ..core.types import Forward, Law, Proposal, Verdict
from ._extending import Extends, Start

NEEDS_DRAFT = True
_JOINS = ("extend", "beside")


@dataclass(frozen=True)
class Config:
    gamma: int = 15  # nodes of the tree, at most; each member adds no more than its own default gamma
    members: str = "lookup,draft_model"  # drafters, in the order in which they draft
    join: str = "extend"  # where later members go on: "extend" or "beside"

    def __post_init__(self) -> None:
        if self.join not in _JOINS:
            raise ParameterError(f"hybrid's join must be one of {', '.join(_JOINS)}, not {self.join!r}")


@dataclass
class _Tree:
    """The tree of one session and round, and each member's view of it."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Law | None] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    views: dict[str, list[int]] = field(default_factory=dict)  # by member: nodes in the order in which it knows them

    def tip(self) -> int | None:
        """The last node of a chain, -1 of nothing; None of a tree with branches."""
        return len(self.tokens) - 1 if Proposal(self.tokens, self.parents).is_chain else None

    def start(self, node: int) -> Start:
        """A proposal that is to begin below ``node``."""
        whole = Proposal(self.tokens, self.parents)
        siblings = [self.tokens[child] for child in whole.children(node)]
        return Start([self.tokens[i] for i in whole.path(node)], len(self.tokens), siblings)

    def add(self, name: str, node: int, proposal: Proposal, merge: bool) -> None:
        """Hang a member's proposal below ``node``. ``merge``: a node that repeats an earlier sibling becomes one with
        it, which only a rule that asks for no laws allows."""
        view = Proposal(self.tokens, self.parents).path(node)
        before = len(view)
        for i, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
            above = view[before + parent] if parent >= 0 else node
            known = range(len(self.tokens)) if merge else ()
            twin = next((n for n in known if self.parents[n] == above and self.tokens[n] == token), None)
            if twin is None:
                twin = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.laws.append(proposal.draft_laws[i] if proposal.draft_laws is not None else None)
                self.origins.append(proposal.origins[i] if proposal.origins is not None else name)
            view.append(twin)
        self.views[name] = view

    def proposal(self) -> Proposal:
        drawn = any(law is not None for law in self.laws)
        return Proposal(self.tokens, self.parents, self.laws if drawn else None, self.origins)


class Hybrid:
    """Asks its members in turn; each is told of its own nodes only, and of those that it drafted behind."""

    needs: Sequence[str] = ()

    def __init__(
        self,
        members: Mapping[str, Drafter],
        join: str = "extend",
        trees: bool = True,
        gammas: Mapping[str, int] | None = None,
    ) -> None:
        self._members, self._join, self._trees = tuple(members.items()), join, trees
        self._gammas = tuple((gammas or {}).items())
        self._rounds: dict[int, _Tree] = {}

    def begin(self, session: Session) -> int:
        return max(member.begin(session) or 0 for _, member in self._members)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        trees, most = [_Tree() for _ in sessions], dict(self._gammas)
        self._rounds |= {session.id: tree for session, tree in zip(sessions, trees, strict=True)}
        for name, member in self._members:
            asked = []
            for i, (session, tree) in enumerate(zip(sessions, trees, strict=True)):
                node = self._place(session, tree)
                if node is not None and len(tree.tokens) < budgets[i]:
                    asked.append((i, node))
            if not asked:
                continue
            starts = [trees[i].start(node) for i, node in asked]
            rooms = [min(budgets[i] - len(trees[i].tokens), most.get(name, budgets[i])) for i, _ in asked]
            drafting = [sessions[i] for i, _ in asked]
            if isinstance(member, Extends):
                answers = member.extend(drafting, starts, rooms)
            else:  # it is the first one
                answers = member.propose(drafting, rooms)
            for (i, node), answer in zip(asked, answers, strict=True):
                trees[i].add(name, node, answer, merge=not sessions[i].rule.NEEDS_LAWS)
        return [tree.proposal() for tree in trees]

    def _place(self, session: Session, tree: _Tree) -> int | None:
        """The node below which the next member drafts; None where the rule or the target takes no branches."""
        tip = tree.tip()
        if self._join == "extend" and tip is not None:
            return tip
        return -1 if not tree.tokens or (self._trees and session.rule.TREES) else None

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        rounds = [self._rounds.pop(session.id, None) for session in sessions]
        for name, member in self._members:
            views = [
                # Where another drafter was at work, all members see what it did.
                (verdict, forward) if tree is None else _view(tree, tree.views.get(name, []), verdict, forward)
                for tree, verdict, forward in zip(rounds, verdicts, seen, strict=True)
            ]
            member.observe(sessions, [verdict for verdict, _ in views], [forward for _, forward in views])

    def shares(self) -> list[Share]:
        return [share for _, member in self._members for share in shares_of(member)]

    def end(self, session: Session) -> None:
        self._rounds.pop(session.id, None)
        for _, member in self._members:
            member.end(session)


def _view(tree: _Tree, view: Sequence[int], verdict: Verdict, seen: Forward) -> tuple[Verdict, Forward]:
    """The verdict as it looks to a member that knows the nodes ``view``, and the rows of these."""
    path: list[int] = []
    token = verdict.token
    for node in verdict.path:
        if node not in view:
            token = tree.tokens[node]
            break
        path.append(view.index(node))
    rows = [0, *(node + 1 for node in view)]
    logits = [tensor[rows] for tensor in seen.logits]
    return Verdict(path, token, verdict.kind), Forward(logits)


def create(config: Config, parts: Parts) -> Drafter:
    """Raises ParameterError for a member that does not exist, DrafterError for one that cannot take part."""
    from . import module  # here: the package's registry imports this module by name

    names = [name.strip() for name in config.members.split(",")]
    if len(set(names)) < len(names) or "hybrid" in names:
        raise ParameterError(f"hybrid's members must be different other drafters, not {config.members!r}")
    configs = {name: module(name).Config() for name in names}
    members = {name: module(name).create(config, parts) for name, config in configs.items()}
    for i, (name, member) in enumerate(members.items()):
        if member.needs:
            raise DrafterError(f"{name!r} cannot be a member of a hybrid: it reads features of every accepted token")
        if i and not isinstance(member, Extends):
            raise DrafterError(f"{name!r} can only be the first member of a hybrid: it cannot draft behind others")
    trees = parts.target is None or parts.target.capabilities().trees
    return Hybrid(members, config.join, trees, {name: config.gamma for name, config in configs.items()})
