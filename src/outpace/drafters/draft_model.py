"""A smaller model of the same vocabulary drafts a chain (Leviathan et al., arXiv 2211.17192, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import DrafterError
from ..core.prefix_cache import CacheUser
from ..core.protocols import Drafter, Parts, Requirements, Runtime, Session
from ..core.types import Chunk, Forward, Proposal, Verdict
from .common.chain import Chain
from .common.extending import Start
from .common.text_cache import TextCache
from .lookup import Config as LookupConfig
from .lookup import Lookup


@dataclass(frozen=True)
class Config:
    gamma: int = 4  # tokens drafted a round
    # Lookup drafts the draft model's next tokens, so that one draft pass checks several. The draft stays the same.
    lookup: bool = True


@dataclass
class _State:
    slot: int
    base: int = 0  # tokens of the text when this round's draft began


class DraftModel:
    """Keeps a cache of its own, and catches up with the text before it drafts: one token after a rejection,
    two after a full acceptance, more after rounds without drafting."""

    needs: Sequence[str] = ()

    def __init__(self, runtime: Runtime, lookup: Lookup | None = None, prefix_bytes: int = 0) -> None:
        """``prefix_bytes``: memory for what it has read of ended requests, for those that begin alike."""
        self._runtime, self._lookup = runtime, lookup
        self._text = TextCache(runtime, prefix_bytes)
        self._cache = self._text.cache
        self._states: dict[int, _State] = {}

    def begin(self, session: Session) -> int:
        slot = self._text.open(session)
        self._states[session.id] = _State(slot, len(session.tokens))
        if self._lookup is not None:
            self._lookup.begin(session)
        return self._cache.length(slot)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        return self.extend(sessions, [Start()] * len(sessions), budgets)

    def extend(self, sessions: Sequence[Session], starts: Sequence[Start], budgets: Sequence[int]) -> list[Proposal]:
        """Drafts behind each text and start. A pass takes what a session's cache lacks, then tokens that lookup
        drafted; each row whose token came true gives the next draw. The last draft is not read: its keys and values
        are not in the cache."""
        texts = [[*session.tokens, *start.path] for session, start in zip(sessions, starts, strict=True)]
        slots: list[int] = []
        chains: list[Chain] = []
        for session, start, text, budget in zip(sessions, starts, texts, budgets, strict=True):
            state = self._states[session.id]
            state.base = len(session.tokens)
            slots.append(state.slot)
            # The draft's own context may end before the target's: it then drafts less, and at last nothing.
            chains.append(Chain(session, min(budget, self._cache.capacity(state.slot) - len(text) + 1), start))
        for session, slot, text, chain in zip(sessions, slots, texts, chains, strict=True):
            if chain.going:
                self._text.read(session, slot, text)
        while active := [i for i, chain in enumerate(chains) if chain.going]:
            chunks = []
            for i in active:
                unread = [*texts[i], *chains[i].tokens][self._cache.length(slots[i]) :]
                ahead = self._look_up(sessions[i], chains[i].path, chains[i].room - 1)
                chunks.append(Chunk(slots[i], [*unread, *ahead], logits_from=len(unread) - 1))
            logits = self._runtime.forward(chunks, self._cache).logits
            for i in active:
                sessions[i].report.draft_passes += 1
            for i, chunk, rows in zip(active, chunks, logits, strict=True):
                chain = chains[i]
                for row, expected in zip(rows, [*chunk.tokens[chunk.logits_from + 1 :], None], strict=True):
                    chain.draw(row)
                    # The last row has no token behind it. The rows behind a wrong token are those of a wrong text.
                    if not chain.going or chain.tokens[-1] != expected:
                        break
                self._cache.keep(slots[i], len(texts[i]) + max(len(chain.tokens), 1) - 1, [])
        return [chain.proposal() for chain in chains]

    def _look_up(self, session: Session, path: Sequence[int], count: int) -> Sequence[int]:
        """What lookup drafts for the draft itself, so that one pass of it may draft several tokens."""
        if self._lookup is None or count < 1:
            return ()
        return self._lookup.draft_after(session, path, count)

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        for session, verdict in zip(sessions, verdicts, strict=True):
            state = self._states[session.id]
            valid = state.base + len(verdict.path)
            if self._cache.length(state.slot) > valid:
                self._cache.keep(state.slot, valid, [])
            state.base = len(session.tokens)  # a round that did not draft has nothing to roll back

    def cache_users(self) -> list[CacheUser]:
        return [self._text.cache_user]

    def end(self, session: Session) -> None:
        state = self._states.pop(session.id, None)
        if state is not None:
            self._text.close(session, state.slot, session.tokens[: state.base])
        if self._lookup is not None:
            self._lookup.end(session)


def requires(config: Config) -> Requirements:
    return Requirements(draft_model=True)


def create(config: Config, parts: Parts) -> Drafter:
    if parts.draft is None:
        raise DrafterError("the drafter 'draft_model' needs a draft model: name one with --draft")
    return DraftModel(parts.draft, Lookup(LookupConfig()) if config.lookup else None, parts.prefix_bytes)
