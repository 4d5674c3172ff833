"""The round: propose, one target pass, verify, commit, keep, observe.

Plain decoding is the same loop with nothing proposed. Between rounds every session holds
``cache.length(slot) == len(tokens) - 1``: the last token is pending.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from torch import Tensor

from ..core.cache import KVCache
from ..core.errors import DrafterError
from ..core.protocols import Drafter, Rule, Runtime, Session
from ..core.types import Chunk, Forward, Law, Proposal, Verdict

logger = logging.getLogger("outpace")

_FAILED = "drafting failed, decoding plainly"

Commit = Callable[[Session, Sequence[int]], int]
"""Appends tokens to the session up to its first stop, sets ``finish`` there, returns how many it took."""


class TargetLaws(Sequence[Law]):
    """The target's laws after the pending token and after each node, worked out when first asked for:
    an acceptance rule looks only at the rows along the path that it accepts."""

    def __init__(self, session: Session, proposal: Proposal, logits: Tensor) -> None:
        self._session, self._proposal, self._logits = session, proposal, logits  # logits: [nodes + 1, vocab]
        self._laws: dict[int, Law] = {}

    def __len__(self) -> int:
        return len(self._proposal) + 1

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence wants slices, nobody asks for them
        if index not in self._laws:
            path = [self._proposal.tokens[node] for node in self._proposal.path(index - 1)]
            self._laws[index] = self._session.pipeline.law(self._logits[index], [*self._session.tokens, *path])
        return self._laws[index]


class Loop:
    """Runs rounds over any set of admitted sessions. Not safe for several threads at once: see Engine."""

    def __init__(
        self, runtime: Runtime, drafter: Drafter, rule: Rule, commit: Commit, *, prefill_rows: int = 256
    ) -> None:
        self._runtime, self._drafter, self._rule, self._commit = runtime, drafter, rule, commit
        self._prefill_rows = prefill_rows
        self._trees = rule.TREES and runtime.capabilities().trees
        self.cache: KVCache = runtime.new_cache()

    def admit(self, sessions: Sequence[Session]) -> None:
        """Give each session a slot, read its prompt but for the pending token, and tell the drafter."""
        for session in sessions:
            session.slot = self.cache.open(max(1, session.limit))
        self._prefill(sessions)
        for session in sessions:
            if session.gamma > 0:
                start = perf_counter()
                try:
                    self._drafter.begin(session)
                except Exception as error:  # whatever a drafter does, the target still answers
                    self._switch_off(session, error)
                session.report.seconds_draft_prefill += perf_counter() - start

    def _prefill(self, sessions: Sequence[Session]) -> None:
        queue = [(session, len(session.tokens) - 1) for session in sessions]
        while queue:
            start, room, chunks, sharers = perf_counter(), self._prefill_rows, [], []
            for session, end in queue:
                done = self.cache.length(session.slot)
                part = session.tokens[done : min(end, done + room)]
                if part:
                    chunks.append(Chunk(session.slot, part, logits_from=len(part)))
                    sharers.append(session)
                    room -= len(part)
            if chunks:
                self._runtime.forward(chunks, self.cache)
            for session in sharers:
                session.report.seconds_prefill += (perf_counter() - start) / len(sharers)
            queue = [(session, end) for session, end in queue if self.cache.length(session.slot) < end]

    def release(self, session: Session) -> None:
        """Free what the session holds; safe at any point after admit."""
        if session.slot >= 0:
            self.cache.close(session.slot)
            session.slot = -1
        try:
            self._drafter.end(session)
        except Exception as error:
            self._warn(session, error)

    def round(self, sessions: Sequence[Session]) -> None:
        """One round for all sessions; each gains at least one token."""
        t0 = perf_counter()
        proposals = self._propose(sessions)
        t1 = perf_counter()
        chunks = [
            Chunk(s.slot, [s.pending, *p.tokens], None if p.is_chain else [-1, *(parent + 1 for parent in p.parents)])
            for s, p in zip(sessions, proposals, strict=True)
        ]
        forward = self._runtime.forward(chunks, self.cache, self._drafter.needs)
        t2 = perf_counter()
        verdicts = [
            self._rule.verify(p, TargetLaws(s, p, logits), s.coins, len(s.tokens))
            for s, p, logits in zip(sessions, proposals, forward.logits, strict=True)
        ]
        t3 = perf_counter()
        for session, proposal, verdict in zip(sessions, proposals, verdicts, strict=True):
            self._settle(session, proposal, verdict)
        self._observe(sessions, verdicts, forward)
        t4 = perf_counter()
        for session in sessions:
            report, share = session.report, 1 / len(sessions)
            report.seconds_draft += (t1 - t0) * share
            report.seconds_target += (t2 - t1) * share
            report.seconds_sample += (t3 - t2) * share
            report.seconds_other += (t4 - t3) * share

    def _propose(self, sessions: Sequence[Session]) -> list[Proposal]:
        """The drafter's proposals; where it raises or breaks its contract, none, reported once."""
        # The round adds a token of the target's own, so drafts beyond limit - 1 could never be emitted.
        budgets = [max(0, min(s.gamma, s.limit - len(s.tokens) - 1)) for s in sessions]
        proposals = [Proposal() for _ in sessions]
        drafting = [i for i, budget in enumerate(budgets) if budget > 0]
        if not drafting:
            return proposals
        try:
            answers = self._drafter.propose([sessions[i] for i in drafting], [budgets[i] for i in drafting])
            if len(answers) != len(drafting):
                raise DrafterError(f"{len(answers)} proposals came for {len(drafting)} sessions")
        except Exception as error:
            for i in drafting:
                self._warn(sessions[i], error)
            return proposals
        for i, proposal in zip(drafting, answers, strict=True):
            try:
                proposal.check(self._runtime.vocab_size, budgets[i], self._trees)
                proposals[i] = proposal
            except Exception as error:
                self._warn(sessions[i], error)
        return proposals

    def _settle(self, session: Session, proposal: Proposal, verdict: Verdict) -> None:
        """Commit what stands, bring the cache to it, and count it."""
        base = len(session.tokens)
        tokens = [*(proposal.tokens[node] for node in verdict.path), verdict.token]
        taken = self._commit(session, tokens)
        # The last token taken is the next pending one; those before it stay cached behind the old one.
        self.cache.keep(session.slot, base - 1, [0, *(node + 1 for node in verdict.path[: taken - 1])])
        report = session.report
        report.target_passes += 1
        report.drafted += len(proposal)
        report.emitted += taken
        report.accepted += min(taken, len(verdict.path))
        report.tested += min(taken, verdict.tested)

    def _observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], forward: Forward) -> None:
        drafting = [i for i, session in enumerate(sessions) if session.gamma > 0]
        if not drafting:
            return
        seen = [
            Forward([forward.logits[i]], {name: [rows[i]] for name, rows in forward.features.items()}) for i in drafting
        ]
        try:
            self._drafter.observe([sessions[i] for i in drafting], [verdicts[i] for i in drafting], seen)
        except Exception as error:  # its state can no longer be trusted
            for i in drafting:
                self._switch_off(sessions[i], error)

    def _switch_off(self, session: Session, error: Exception) -> None:
        self._warn(session, error)
        session.gamma = 0

    def _warn(self, session: Session, error: Exception) -> None:
        """Report the session's first failure to draft: later ones may differ in words, not in effect."""
        if not any(warning.startswith(_FAILED) for warning in session.report.warnings):
            session.report.warnings.append(f"{_FAILED}: {type(error).__name__}: {error}")
            logger.warning("%s", session.report.warnings[-1])
