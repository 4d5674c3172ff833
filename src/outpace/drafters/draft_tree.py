"""A smaller model of the same vocabulary drafts a tree: several tokens where one may be rejected (SpecInfer, Miao et
al., arXiv 2305.09781; grown as in EAGLE-2, 2406.16858, section 4).

See common/tree.py for what is chosen and what is drawn. With ``width`` 1 only the likeliest path is expanded, at the
price of a chain, and its alternatives are leaves beside it. With more, a level's pass runs all expanded nodes anew,
since a cached row cannot be hidden from its cousins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.errors import DrafterError, ParameterError
from ..core.prefix_cache import CacheUser
from ..core.protocols import Drafter, Parts, Requirements, Runtime, Session
from ..core.types import Chunk, Forward, Proposal, Rows, Verdict
from .common.text_cache import TextCache
from .common.tree import Tree, grow


@dataclass(frozen=True)
class Config:
    gamma: int = 8  # nodes of the tree, at most
    depth: int = 4  # levels of the tree, and passes of the draft, at most
    width: int = 1  # nodes expanded a level
    children: int = 3  # tokens looked at behind each

    def __post_init__(self) -> None:
        for name in ("depth", "width", "children"):
            if getattr(self, name) < 1:
                raise ParameterError(f"draft_tree's {name} must be at least 1, not {getattr(self, name)}")


@dataclass
class _Growing:
    """A session's tree in the making. ``levels``: how many passes it gets; ``expanded``: nodes run, in order."""

    tree: Tree
    session: Session
    slot: int
    levels: int
    budget: int
    expanded: list[int] = field(default_factory=list)


class DraftTree:
    """Keeps a cache of the text, and drops each round's tree: what was accepted is computed again in the next pass."""

    needs: Sequence[str] = ()

    def __init__(self, runtime: Runtime, config: Config, prefix_bytes: int = 0) -> None:
        """``prefix_bytes``: as :class:`DraftModel`'s."""
        self._runtime, self._config = runtime, config
        self._text = TextCache(runtime, prefix_bytes, spare=config.depth * config.width)
        self._cache = self._text.cache
        self._slots: dict[int, int] = {}

    def begin(self, session: Session) -> int:
        self._slots[session.id] = slot = self._text.open(session)
        return self._cache.length(slot)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        growing = []
        for session, budget in zip(sessions, budgets, strict=True):
            # The draft's own context may end before the target's: it then drafts less, and at last nothing.
            room = self._runtime.context - len(session.tokens) + 1
            levels = min(self._config.depth, budget, room)
            growing.append(_Growing(Tree(), session, self._slots[session.id], levels, budget))
        for one in growing:
            if one.levels > 0:
                self._text.read(one.session, one.slot, one.session.tokens)
        level = 0
        try:
            while active := [one for one in growing if one.levels > level and one.tree.level]:
                rows = self._runtime.forward([self._chunk(one) for one in active], self._cache).logits
                for one in active:
                    one.session.report.draft_passes += 1
                for one, logits in zip(active, rows, strict=True):
                    one.expanded += [node for node in one.tree.level if node >= 0]
                    self._grow(one, logits, level)
                level += 1
        finally:
            for one in growing:
                self._cache.keep(one.slot, min(len(one.session.tokens), self._cache.length(one.slot)), [])
        return [one.tree.proposal(one.budget, one.session.draft.stop_below) for one in growing]

    def _grow(self, one: _Growing, logits: Rows, level: int) -> None:
        width, children = (self._config.width, self._config.children) if one.session.record.trees else (1, 1)
        levels = one.levels - level
        grow(one.tree, one.session, logits, width=width, children=children, budget=one.budget, levels=levels)

    def _chunk(self, one: _Growing) -> Chunk:
        """The rows that give the logits after each node of the tree's level."""
        tree, base = one.tree, len(one.session.tokens)
        if tree.level == [-1]:
            known = min(self._cache.length(one.slot), base - 1)  # the pending token's row gives the first logits
            self._cache.keep(one.slot, known, [])
            text = one.session.tokens[known:]
            return Chunk(one.slot, text, logits_from=len(text) - 1)
        if tree.path(tree.level[0])[:-1] == one.expanded and len(tree.level) == 1:  # all that is cached is its path
            return Chunk(one.slot, [tree.tokens[tree.level[0]]])
        self._cache.keep(one.slot, base, [])
        nodes = [*one.expanded, *tree.level]
        place = {-1: -1} | {node: row for row, node in enumerate(nodes)}
        parents = [place[tree.parents[node]] for node in nodes]
        return Chunk(one.slot, [tree.tokens[node] for node in nodes], parents, logits_from=len(one.expanded))

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def cache_users(self) -> list[CacheUser]:
        return [self._text.cache_user]

    def end(self, session: Session) -> None:
        slot = self._slots.pop(session.id, None)
        if slot is not None:
            self._text.close(session, slot, session.tokens)


def requires(config: Config) -> Requirements:
    return Requirements(draft_model=True)


def create(config: Config, parts: Parts) -> Drafter:
    if parts.draft is None:
        raise DrafterError("the drafter 'draft_tree' needs a draft model: name one with --draft")
    if not parts.draft.capabilities().trees and config.width > 1:
        raise DrafterError("the draft model takes no trees; draft_tree needs width 1 with it")
    return DraftTree(parts.draft, config, parts.prefix_bytes)
