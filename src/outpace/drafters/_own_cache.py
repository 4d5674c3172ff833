"""Drafting on the target's own keys and values: for drafts made of the target itself, whose layers fit its cache.

The draft reads the text's entries that the target wrote, writes those of its own drafts behind them, and drops these
when it is done: the target's pass writes them anew. So there is no prompt to read twice, no second cache, and nothing
to catch up with or to roll back. Where a draft's layer follows on others of the same weights (below the first layer
that was skipped) the entries are the ones it would have made; above, they are better ones, made by the whole target
(Draft & Verify, Zhang et al., arXiv 2309.08168, section 3). Its guesses depend on the text alone either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.protocols import Runtime, Session
from ..core.types import Chunk, Forward, Law, Proposal, Verdict

_GREEDY = 0.7  # p ** 0.7 is how often a first choice of probability p was the target's (docs/log.md)


def confidence(law: Law, logits: Tensor, token: int) -> float:
    """P(the token stands), as the draft sees it: its probability of the token that it drew. Greedily, where the law
    knows no doubt, the one of its logits is too low: the target's first choice is the draft's own more often."""
    return law.prob(token) if law.size > 1 else float(torch.softmax(logits, dim=-1)[token]) ** _GREEDY


class OwnCacheDraft:
    """Drafts a chain with a runtime whose passes work on the target's cache; keeps nothing between rounds."""

    needs: Sequence[str] = ()

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def begin(self, session: Session) -> None: ...

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        drawn: list[list[int]] = [[] for _ in sessions]
        laws: list[list[Law | None]] = [[] for _ in sessions]
        stands = [1.0] * len(sessions)  # estimated probability that the whole path so far is accepted
        # A session that no loop has admitted has no cache to draft from.
        active = [i for i, budget in enumerate(budgets) if budget > 0 and sessions[i].cache is not None]
        admitted = list(active)
        try:
            step = 0
            while active:
                cache = sessions[active[0]].cache
                assert cache is not None
                chunks = [Chunk(sessions[i].slot, drawn[i][-1:] or [sessions[i].pending]) for i in active]
                logits = self._runtime.forward(chunks, cache).logits
                for i, row in zip(active, logits, strict=True):
                    session = sessions[i]
                    law = session.pipeline.law(row[-1], [*session.tokens, *drawn[i]])
                    drawn[i].append(session.rule.draw(law, session.coins, len(session.tokens), step, step))
                    laws[i].append(law)
                    if session.stop_below > 0:
                        stands[i] *= confidence(law, row[-1], drawn[i][-1])
                step += 1
                active = [i for i in active if budgets[i] > step and stands[i] >= sessions[i].stop_below]
        finally:
            for i in admitted:
                session = sessions[i]
                assert session.cache is not None
                session.cache.keep(session.slot, len(session.tokens) - 1, [])
        return [
            Proposal.chain(d, q if session.rule.NEEDS_LAWS else None)
            for session, d, q in zip(sessions, drawn, laws, strict=True)
        ]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def end(self, session: Session) -> None: ...
