"""Drafting on the target's own keys and values: for drafts made of the target itself, whose layers fit its cache.

The draft reads the text's entries that the target wrote, writes those of its own drafts behind them, and drops these
when it is done: the target's pass writes them anew. So there is no prompt to read twice, no second cache, and nothing
to catch up with or to roll back. Where a draft's layer follows on others of the same weights (below the first layer
that was skipped) the entries are the ones it would have made; above, they are better ones, made by the whole target
(Draft & Verify, Zhang et al., arXiv 2309.08168, section 3). Its drafts depend on the text alone either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.protocols import Runtime, Session
from ...core.types import Chunk, Forward, Proposal, Verdict
from .chain import Chain


class OwnCacheDraft:
    """Drafts a chain with a runtime whose passes work on the target's cache; keeps nothing between rounds."""

    needs: Sequence[str] = ()

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def begin(self, session: Session) -> None: ...

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        # A session that no loop has admitted has no cache to draft from.
        chains = [
            Chain(session, budget if session.cache is not None else 0)
            for session, budget in zip(sessions, budgets, strict=True)
        ]
        admitted = [session for session, chain in zip(sessions, chains, strict=True) if chain.going]
        try:
            while active := [i for i, chain in enumerate(chains) if chain.going]:
                cache = sessions[active[0]].cache
                assert cache is not None
                chunks = [Chunk(sessions[i].slot, chains[i].tokens[-1:] or [sessions[i].pending]) for i in active]
                for i, row in zip(active, self._runtime.forward(chunks, cache).logits, strict=True):
                    chains[i].draw(row[-1])
        finally:
            for session in admitted:
                assert session.cache is not None
                session.cache.keep(session.slot, len(session.tokens) - 1, [])
        return [chain.proposal() for chain in chains]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def end(self, session: Session) -> None: ...
