"""A draft of another vocabulary drafts text, which is encoded in the target's tokens: universal assisted generation,
string-level exact match (SLEM, Timor et al., arXiv 2502.05202, section 3).

The draft writes greedily, so its text follows from the session's text alone: the tokens are chosen, not drawn, and any
acceptance rule stays exact. Characters that are not whole yet are kept back. The last token may be the beginning of a
longer one: it is submitted all the same, since a rejected row at the end of the draft loses nothing but itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.prefix_cache import CacheUser
from ..core.protocols import Drafter, Parts, Requirements, Session
from ..core.types import Forward, Proposal, Verdict
from ..kernels.sampling import row_log_total
from ..text.pairing import Encoder, TextOf
from .common.other_text import OtherDraft, draft_of_other_text

_STEPS = 2  # tokens of the draft for one of the target's, at most; chosen by hand


@dataclass(frozen=True)
class Config:
    gamma: int = 4  # tokens of the target drafted a round


class Reencode:
    """Drafts a chain of the target's tokens out of the draft's text."""

    needs: Sequence[str] = ()

    def __init__(self, draft: OtherDraft) -> None:
        self._draft = draft
        self._encoder = Encoder(draft.target)

    def begin(self, session: Session) -> None:
        self._draft.begin(session)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        rows = [self._draft.catch_up(s) if budget > 0 else [] for s, budget in zip(sessions, budgets, strict=True)]
        decoders = [TextOf(self._draft.draft) for _ in sessions]
        texts, chances = [""] * len(sessions), [1.0] * len(sessions)
        tokens: list[list[int]] = [[] for _ in sessions]
        active = [i for i, ids in enumerate(rows) if ids]
        step = 0
        while active:
            logits = self._draft.step([sessions[i] for i in active], [rows[i] for i in active])
            step += 1
            going = []
            for i, row in zip(active, logits, strict=True):
                session, token = sessions[i], int(row.argmax())
                rows[i] = [token]
                texts[i] += decoders[i].push(token)
                tokens[i] = self._encoder.go_on(texts[i])
                if session.draft.stop_below > 0:
                    chances[i] *= math.exp(float(row[token]) - row_log_total(row))
                enough = (
                    len(tokens[i]) >= budgets[i] or step >= _STEPS * budgets[i] or chances[i] < session.draft.stop_below
                )
                if not enough and token not in self._draft.draft.special_ids and self._draft.room(session):
                    going.append(i)
            active = going
        return [Proposal.chain(ids[:budget]) for ids, budget in zip(tokens, budgets, strict=True)]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def cache_users(self) -> list[CacheUser]:
        return [self._draft.cache_user]

    def end(self, session: Session) -> None:
        self._draft.end(session)


def requires(config: Config) -> Requirements:
    return Requirements(draft_model=True, same_vocabulary=False)


def create(config: Config, parts: Parts) -> Drafter:
    return Reencode(draft_of_other_text("reencode", parts))
