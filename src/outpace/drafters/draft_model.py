"""A smaller model of the same vocabulary drafts a chain (Leviathan et al., arXiv 2211.17192, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import DrafterError
from ..core.protocols import Drafter, Parts, Rule, Runtime, Session
from ..core.types import Chunk, Forward, Law, Proposal, Verdict

NEEDS_DRAFT = True
_PREFILL_ROWS = 256  # rows a pass while the draft reads the text
_CATCH_UP_ROWS = 8  # unread tokens that the first drafting step takes along


@dataclass(frozen=True)
class Config:
    gamma: int = 4  # tokens drafted a round


@dataclass
class _State:
    slot: int
    base: int = 0  # tokens of the text when this round's draft began


class DraftModel:
    """Keeps a cache of its own, and catches up with the text before it drafts: one token after a refusal,
    two after a full acceptance, more after rounds without drafting."""

    needs: Sequence[str] = ()

    def __init__(self, runtime: Runtime, rule: Rule) -> None:
        self._runtime, self._rule = runtime, rule
        self._cache = runtime.new_cache()
        self._states: dict[int, _State] = {}

    def begin(self, session: Session) -> None:
        capacity = max(1, min(session.limit, self._runtime.context))
        self._states[session.id] = state = _State(self._cache.open(capacity))
        self._read(state.slot, session.tokens[:-1])

    def _read(self, slot: int, text: Sequence[int]) -> None:
        """Cache ``text`` as far as it is not cached yet and the draft's context allows."""
        text = text[: self._cache.capacity(slot)]
        for start in range(self._cache.length(slot), len(text), _PREFILL_ROWS):
            part = text[start : start + _PREFILL_ROWS]
            self._runtime.forward([Chunk(slot, part, logits_from=len(part))], self._cache)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        drawn: list[list[int]] = [[] for _ in sessions]
        laws: list[list[Law | None]] = [[] for _ in sessions]
        depths: list[int] = []
        for session, budget in zip(sessions, budgets, strict=True):
            state = self._states[session.id]
            state.base = len(session.tokens)
            # The draft's own context may end before the target's: it then drafts less, and at last nothing.
            depths.append(min(budget, self._cache.capacity(state.slot) - state.base + 1))
        active = [i for i, depth in enumerate(depths) if depth > 0]
        for i in active:
            self._read(self._states[sessions[i].id].slot, sessions[i].tokens[:-_CATCH_UP_ROWS])
        step = 0
        while active:
            chunks = []
            for i in active:
                slot = self._states[sessions[i].id].slot
                rows = drawn[i][-1:] or sessions[i].tokens[self._cache.length(slot) :]
                chunks.append(Chunk(slot, rows, logits_from=len(rows) - 1))
            logits = self._runtime.forward(chunks, self._cache).logits
            for i, row in zip(active, logits, strict=True):
                session = sessions[i]
                law = session.pipeline.law(row[-1], [*session.tokens, *drawn[i]])
                drawn[i].append(self._rule.draw(law, session.coins, len(session.tokens), step, step))
                laws[i].append(law)
            step += 1
            active = [i for i in active if depths[i] > step]
        keep_laws = self._rule.NEEDS_LAWS
        return [Proposal.chain(d, q if keep_laws else None) for d, q in zip(drawn, laws, strict=True)]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        for session, verdict in zip(sessions, verdicts, strict=True):
            state = self._states[session.id]
            valid = state.base + len(verdict.path)
            if self._cache.length(state.slot) > valid:
                self._cache.keep(state.slot, valid, [])
            state.base = len(session.tokens)  # a round that did not draft has nothing to roll back

    def end(self, session: Session) -> None:
        state = self._states.pop(session.id, None)
        if state is not None:
            self._cache.close(state.slot)


def create(config: Config, parts: Parts) -> Drafter:
    if parts.draft is None:
        raise DrafterError("the drafter 'draft_model' needs a draft model: name one with --draft")
    return DraftModel(parts.draft, parts.rule)
