"""The drafter over an EAGLE network, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from ...core.cache import KVCache
from ...core.errors import ModelError
from ...core.prefix_cache import CacheUser, PrefixCache
from ...core.protocols import Drafter, Parts, Session
from ...core.types import Forward, Proposal, Verdict
from ...runtimes.torch_decoder import Span, attention, rotation
from ...runtimes.torch_runtime import attention_mask
from ...runtimes.torch_tensors import NAMES, tensor_of
from ..common.heads import folder, read_heads, target_matrix
from ..common.tree import Tree, grow
from .net import EagleNet, build_net

_READ_ROWS = 256  # rows a pass over the text; chosen by hand


@dataclass
class _State:
    slot: int
    length: int  # of the text when the drafter last looked
    features: list[Tensor] = field(default_factory=list)  # [rows, width] of the target, not read yet


@dataclass
class _Rows:
    """What one session brings to a pass of the draft."""

    slot: int
    tokens: list[int]
    states: Tensor  # [rows, hidden]
    positions: list[int]
    mask: Tensor | None  # [rows, cached + rows]


@dataclass
class _Growing:
    """A session's tree in the making. ``levels``: how many passes it gets; by expanded node, ``states``: ``[hidden]``
    behind it, ``columns``: its place in the cache."""

    tree: Tree
    session: Session
    levels: int
    budget: int
    states: dict[int, Tensor] = field(default_factory=dict)
    columns: dict[int, int] = field(default_factory=dict)


class Eagle:
    """Drafts trees with an :class:`EagleNet`."""

    def __init__(self, net: EagleNet, vocab_size: int, depth: int, width: int) -> None:
        self.needs: Sequence[str] = net.taps
        self._net, self._vocab_size, self._depth, self._width = net, vocab_size, depth, width
        config = net.config
        self._cache = KVCache(1, config.kv_heads, config.head_dim, NAMES[net.dtype])
        self._cache_user = CacheUser(PrefixCache(self._cache, 0), self._entries)
        self._states: dict[int, _State] = {}

    def cache_users(self) -> list[CacheUser]:
        return [self._cache_user]

    def _entries(self, tokens: int) -> int:
        return tokens + self._width * self._depth

    def begin(self, session: Session) -> None:
        capacity = self._entries(session.request.limit)
        self._states[session.id] = _State(self._cache.open(capacity), len(session.tokens))

    def read(self, session: Session, first: int, seen: Forward) -> None:
        """Keep the features of prompt rows until there is something to draft."""
        self._states[session.id].features.append(self._features(seen))

    def _features(self, seen: Forward, rows: list[int] | slice = slice(None)) -> Tensor:
        return torch.cat([tensor_of(seen.features[name][0][rows]).to(self._net.dtype) for name in self.needs], -1)

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        for session, verdict, forward in zip(sessions, verdicts, seen, strict=True):
            state = self._states[session.id]
            gained = len(session.tokens) - state.length
            rows = [0, *(node + 1 for node in verdict.path)][:gained]  # a stop may have cut the round
            state.features.append(self._features(forward, rows))
            state.length = len(session.tokens)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        growing = {
            i: _Growing(Tree(), session, min(self._depth, budget), budget)
            for i, (session, budget) in enumerate(zip(sessions, budgets, strict=True))
            if budget > 0 and self._is_shown(session)
        }
        try:
            for one in growing.values():
                self._catch_up(one.session)
            level = 0
            while active := [one for one in growing.values() if one.levels > level and one.tree.level]:
                self._grow(active, level)
                level += 1
        finally:
            for one in growing.values():  # the tree is dropped, the text stays
                slot, base = self._states[one.session.id].slot, len(one.session.tokens) - 1
                self._cache.keep(slot, min(base, self._cache.length(slot)), [])
        return [
            growing[i].tree.proposal(budget, session.draft.stop_below) if i in growing else Proposal()
            for i, (session, budget) in enumerate(zip(sessions, budgets, strict=True))
        ]

    def _grow(self, active: Sequence[_Growing], level: int) -> None:
        """One level of all trees, in one pass."""
        rows = [self._nodes(one) if level else self._text(one.session) for one in active]
        behind = self._forward(rows)
        for one, after in zip(active, behind, strict=True):
            if not level:
                self._states[one.session.id].features.clear()
            after = after[-len(one.tree.level) :]  # of the text only the last row counts
            one.states |= dict(zip(one.tree.level, after, strict=True))
            width = self._width if one.session.record.trees else 1
            logits = self._net.logits(after, self._vocab_size).numpy(force=True)
            levels = one.levels - level
            grow(one.tree, one.session, logits, width=width, children=width, budget=one.budget, levels=levels)

    def _is_shown(self, session: Session) -> bool:
        """Whether the target has shown all rows of the text, and new ones since the last draft."""
        state = self._states[session.id]
        waiting = sum(len(part) for part in state.features)
        return waiting > 0 and self._cache.length(state.slot) + waiting == len(session.tokens) - 1

    def _catch_up(self, session: Session) -> None:
        """Read the text but for its last rows, which share the first pass with others."""
        state, start = self._states[session.id], perf_counter()
        state.features = [torch.cat(state.features)]
        while len(state.features[0]) > _READ_ROWS:
            self._forward([self._text(session)])
            state.features[0] = state.features[0][_READ_ROWS:]
        session.report.seconds_draft_prefill += perf_counter() - start

    def _text(self, session: Session) -> _Rows:
        """The next rows of the text, of those that wait."""
        state = self._states[session.id]
        features, first = state.features[0][:_READ_ROWS], self._cache.length(state.slot)
        count = len(features)
        tokens = session.tokens[first + 1 : first + 1 + count]
        mask = attention_mask(None, first, count, self._net.dtype)
        return _Rows(state.slot, tokens, self._net.enter(features), list(range(first, first + count)), mask)

    def _nodes(self, one: _Growing) -> _Rows:
        """The nodes of the tree's level: each sees the text, its own path and itself."""
        tree, slot, base = one.tree, self._states[one.session.id].slot, len(one.session.tokens) - 1
        cached, rows = self._cache.length(slot), len(tree.level)
        mask = torch.zeros(rows, cached + rows, dtype=self._net.dtype)
        mask[:, base:] = -torch.inf
        for row, node in enumerate(tree.level):
            one.columns[node] = cached + row
            mask[row, [one.columns[above] for above in tree.path(node)]] = 0.0
        return _Rows(
            slot,
            [tree.tokens[node] for node in tree.level],
            torch.stack([one.states[tree.parents[node]] for node in tree.level]),
            [base + len(tree.path(node)) - 1 for node in tree.level],
            mask,
        )

    def _forward(self, rows: Sequence[_Rows]) -> list[Tensor]:
        """States ``[rows, hidden]`` of each session, in one pass; their keys and values are cached."""
        spans, first = [], 0
        for part in rows:
            keys, values = (torch.from_numpy(stored) for stored in self._cache.storage(part.slot))
            start, count = self._cache.length(part.slot), len(part.tokens)
            self._cache.advance(part.slot, count)
            end = start + count
            new = (keys[:, :, start:end].unbind(0), values[:, :, start:end].unbind(0))
            held = (keys[:, :, :end].unbind(0), values[:, :, :end].unbind(0))
            spans.append(Span(slice(first, first + count), *new, *held, part.mask))
            first += count
        config = self._net.config
        positions = torch.tensor([position for part in rows for position in part.positions])
        cos, sin = rotation(positions, config, self._net.dtype)
        attend = partial(attention, config=config, cos=cos, sin=sin, spans=spans, layer=0)
        tokens = torch.tensor([token for part in rows for token in part.tokens])
        after = self._net.forward(tokens, torch.cat([part.states for part in rows]), attend)
        return list(after.split([len(part.tokens) for part in rows]))

    def end(self, session: Session) -> None:
        state = self._states.pop(session.id, None)
        if state is not None:
            self._cache.close(state.slot)


def create(heads: str, depth: int, width: int, parts: Parts) -> Drafter:
    model = parts.target_model
    path = folder(heads, "eagle", model)
    settings, tensors = read_heads(path)
    net = build_net(
        settings,
        tensors,
        str(path),
        layers=model.config.layers if model is not None else None,
        vocab_size=parts.vocab_size,
        embedding=lambda: target_matrix(model, "embedding", str(path)),
        output=lambda: target_matrix(model, "head", str(path)),
    )
    if model is not None:
        features = model.config.hidden * len(net.taps)
        wanted = net.fc.weight.shape[1] if net.third else net.config.hidden
        if wanted != features:
            raise ModelError(f"{path}: a network over features of {wanted} values, but the target's have {features}")
    return Eagle(net, parts.vocab_size, depth, width)
