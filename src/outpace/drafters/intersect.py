"""A draft of another vocabulary drafts with the tokens that both have: token-level intersection (TLI, Timor et al.,
arXiv 2502.05202, section 4).

The draft's distribution is that of its logits at the shared tokens alone, renormalised, under the target's ids and the
request's own sampling controls. Tokens are drawn from it and submitted with it, so that every acceptance rule stays
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import DrafterError, NumericsError
from ..core.prefix_cache import CacheUser
from ..core.protocols import Drafter, Parts, Requirements, Session
from ..core.types import Array, Forward, Proposal, Verdict
from ..text.pairing import shared_tokens
from .common.chain import Chain
from .common.other_text import OtherDraft, draft_of_other_text


@dataclass(frozen=True)
class Config:
    gamma: int = 4  # tokens drafted a round


class Intersect:
    """Drafts a chain of shared tokens."""

    needs: Sequence[str] = ()

    def __init__(self, draft: OtherDraft, vocab_size: int) -> None:
        self._draft, self._vocab_size = draft, vocab_size
        self._targets, self._drafts = shared_tokens(draft.target, draft.draft)
        if not self._targets.size:
            raise DrafterError("target and draft have no token in common: use the drafter 'reencode'")
        self._draft_id = np.full(vocab_size, -1)  # by the target's
        self._draft_id[self._targets] = self._drafts

    def begin(self, session: Session) -> None:
        self._draft.begin(session)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        rows = [self._draft.catch_up(s) if budget > 0 else [] for s, budget in zip(sessions, budgets, strict=True)]
        chains = [Chain(*one) for one in zip(sessions, budgets, strict=True)]
        active = [i for i, ids in enumerate(rows) if ids]
        while active:
            logits = self._draft.step([sessions[i] for i in active], [rows[i] for i in active])
            for i, row in zip(active, logits, strict=True):
                chains[i].draw(self._spread(row))
                if isinstance(sessions[i].record.error, NumericsError) and not bool(np.isnan(row).any()):
                    sessions[i].record.error = None  # no shared token is allowed here: that is no failure
                rows[i] = [int(self._draft_id[token]) for token in chains[i].tokens[-1:]]
            # Where a constraint allows none of the shared tokens, the draft cannot read what was drawn.
            active = [i for i in active if chains[i].going and rows[i] != [-1] and self._draft.room(sessions[i])]
        return [chain.proposal() for chain in chains]

    def _spread(self, logits: Array) -> Array:
        """``[draft vocab]`` -> ``[vocab_size]`` under the target's ids: -inf for what the draft has no token for."""
        full = np.full(self._vocab_size, -np.inf, dtype=logits.dtype)
        full[self._targets] = logits[self._drafts]
        return full

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def cache_users(self) -> list[CacheUser]:
        return [self._draft.cache_user]

    def end(self, session: Session) -> None:
        self._draft.end(session)


def requires(config: Config) -> Requirements:
    return Requirements(draft_model=True, same_vocabulary=False)


def create(config: Config, parts: Parts) -> Drafter:
    return Intersect(draft_of_other_text("intersect", parts), parts.vocab_size)
