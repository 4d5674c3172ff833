"""Several drafters in one tree.

Each member drafts behind what the members before it have drafted ("extend": where they made a chain, at its end), or
all draft from the pending token ("beside"). A drawn token that repeats an earlier sibling's would be wrong to drop: it
is drawn from its distribution with the earlier siblings' tokens taken out, or stays in the tree as a test that fails,
and takes its distribution's mass out of the residual (the recursive rule of arXiv 2305.09781, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import DrafterError, ParameterError
from ..core.prefix_cache import CacheUser, cache_users_of
from ..core.protocols import Drafter, Parts, Requirements, Session
from ..core.recording import DraftRecord
from ..core.types import Forward, Proposal, Verdict
from .common.extending import Extends, Start

_JOINS = ("extend", "beside")


@dataclass(frozen=True)
class Config:
    gamma: int = 15  # nodes of the tree, at most; each member adds no more than its own gamma
    members: str = "lookup,draft_model"  # drafters, in the order in which they draft
    join: str = "extend"  # where later members go on: "extend" or "beside"
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # the members' own, by member

    def __post_init__(self) -> None:
        if self.join not in _JOINS:
            raise ParameterError(f"hybrid's join must be one of {', '.join(_JOINS)}, not {self.join!r}")
        names = self.member_names
        if len(set(names)) < len(names) or "hybrid" in names:
            raise ParameterError(f"hybrid's members must be different other drafters, not {self.members!r}")

    @property
    def member_names(self) -> list[str]:
        return [name.strip() for name in self.members.split(",")]


@dataclass
class _Round:
    """What one session drafts in a round, which is its record, and each member's view of it."""

    record: DraftRecord
    views: dict[str, list[int]] = field(default_factory=dict)  # by member: nodes in the order in which it knows them

    def tip(self) -> int | None:
        """The last node of a chain, -1 of nothing; None of a tree with branches."""
        return len(self.record) - 1 if self.record.proposal().is_chain else None

    def start(self, node: int) -> Start:
        """A proposal that is to begin below ``node``."""
        record = self.record
        siblings = [record.tokens[child] for child in record.proposal().children(node)]
        return Start([record.tokens[i] for i in record.path(node)], len(record), siblings)

    def add(self, name: str, node: int, before: int, proposal: Proposal) -> None:
        """Hang below ``node`` what a member has proposed. What it drew is in the record, from node ``before`` on."""
        record = self.record
        view = record.path(node)
        shared, drawn = len(view), len(record)
        for i, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
            above = view[shared + parent] if parent >= 0 else node
            distribution = proposal.draft_distributions[i] if proposal.draft_distributions is not None else None
            if not record.merge and before + i < drawn:
                if (token, above) != (record.tokens[before + i], record.parents[before + i]):
                    raise DrafterError(f"{name!r} did not propose what it drew")
                view.append(before + i)
            else:
                view.append(
                    record.add(token, above, distribution, proposal.origins[i] if proposal.origins is not None else "")
                )
        if not record.merge and before + len(proposal) < drawn:
            raise DrafterError(f"{name!r} did not propose all that it drew")
        self.views[name] = view


class Hybrid:
    """Asks its members in turn; each is told of its own nodes only, and of those that it drafted behind."""

    needs: Sequence[str] = ()

    def __init__(
        self,
        members: Mapping[str, Drafter],
        join: str = "extend",
        gammas: Mapping[str, int] | None = None,
    ) -> None:
        self._members, self._join = tuple(members.items()), join
        self._gammas = tuple((gammas or {}).items())
        self._rounds: dict[int, _Round] = {}

    def begin(self, session: Session) -> int:
        return max(member.begin(session) or 0 for _, member in self._members)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        trees, most = [_Round(session.record) for session in sessions], dict(self._gammas)
        self._rounds |= {session.id: tree for session, tree in zip(sessions, trees, strict=True)}
        for name, member in self._members:
            asked = []
            for i, (session, tree) in enumerate(zip(sessions, trees, strict=True)):
                node = self._place(session, tree)
                if node is not None and len(tree.record) < budgets[i]:
                    asked.append((i, node))
            if not asked:
                continue
            starts = [trees[i].start(node) for i, node in asked]
            rooms = [min(budgets[i] - len(trees[i].record), most.get(name, budgets[i])) for i, _ in asked]
            drafting = [sessions[i] for i, _ in asked]
            before = [len(trees[i].record) for i, _ in asked]
            for i, _ in asked:
                trees[i].record.origin = name
            if isinstance(member, Extends):
                answers = member.extend(drafting, starts, rooms)
            else:  # it is the first one
                answers = member.propose(drafting, rooms)
            for (i, node), first, answer in zip(asked, before, answers, strict=True):
                trees[i].add(name, node, first, answer)
        return [tree.record.proposal() for tree in trees]

    def _place(self, session: Session, tree: _Round) -> int | None:
        """The node below which the next member drafts; None where the rule or the target takes no branches."""
        tip = tree.tip()
        if self._join == "extend" and tip is not None:
            return tip
        return -1 if not len(tree.record) or session.record.trees else None

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        rounds = [self._rounds.pop(session.id, None) for session in sessions]
        for name, member in self._members:
            views = [
                # Where another drafter was at work, all members see what it did.
                (verdict, forward) if tree is None else _view(tree, tree.views.get(name, []), verdict, forward)
                for tree, verdict, forward in zip(rounds, verdicts, seen, strict=True)
            ]
            member.observe(sessions, [verdict for verdict, _ in views], [forward for _, forward in views])

    def cache_users(self) -> list[CacheUser]:
        return [user for _, member in self._members for user in cache_users_of(member)]

    def end(self, session: Session) -> None:
        self._rounds.pop(session.id, None)
        for _, member in self._members:
            member.end(session)


def _view(tree: _Round, view: Sequence[int], verdict: Verdict, seen: Forward) -> tuple[Verdict, Forward]:
    """The verdict as it looks to a member that knows the nodes ``view``, and the rows of these."""
    path: list[int] = []
    token = verdict.token
    for node in verdict.path:
        if node not in view:
            token = tree.record.tokens[node]
            break
        path.append(view.index(node))
    rows = [0, *(node + 1 for node in view)]
    logits = [tensor[rows] for tensor in seen.logits]
    return Verdict(path, token, verdict.kind), Forward(logits)


def _members(config: Config) -> dict[str, Any]:
    """The members' own Configs, by name."""
    from . import configure  # here: the package's registry imports this module by name

    return configure(config.member_names, config.options)


def requires(config: Config) -> Requirements:
    """All that one of the members requires. Raises ParameterError for a member that does not exist."""
    from . import requirements

    wanted = requirements(_members(config)).values()
    drafts = [one for one in wanted if one.draft_model]
    return Requirements(
        draft_model=bool(drafts),
        same_vocabulary=not drafts or any(one.same_vocabulary for one in drafts),
        torch=any(one.torch for one in wanted),
    )


def create(config: Config, parts: Parts) -> Drafter:
    """Raises ParameterError for a member that does not exist, DrafterError for one that cannot take part."""
    from . import module

    configs = _members(config)
    members = {name: module(name).create(config, parts) for name, config in configs.items()}
    for i, (name, member) in enumerate(members.items()):
        if member.needs:
            raise DrafterError(f"{name!r} cannot be a member of a hybrid: it reads features of every accepted token")
        if i and not isinstance(member, Extends):
            raise DrafterError(f"{name!r} can only be the first member of a hybrid: it cannot draft behind others")
    return Hybrid(members, config.join, {name: config.gamma for name, config in configs.items()})
