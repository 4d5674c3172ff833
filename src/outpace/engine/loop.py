"""The round: propose, one target pass, verify, commit, keep, observe.

Plain decoding is the same loop with nothing proposed. A session that has just been admitted begins with its prefill:
the prompt goes through the target in pieces, which share their passes with the rounds of the others. From then on every
session holds ``cache.length(slot) == len(tokens) - 1`` between rounds: the last token is pending.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from ..core.cache import KVCache
from ..core.errors import DrafterError
from ..core.prefix_cache import CacheUser, PrefixCache
from ..core.protocols import Controller, Drafter, ReadsFeatures, Rule, Runtime, Session
from ..core.types import Array, Chunk, Distribution, Forward, Proposal, Rows, Verdict
from .round_clock import RoundClock

logger = logging.getLogger("outpace")

_FAILED = "drafting failed"

Commit = Callable[[Session, Sequence[int], Sequence[Array]], int]
"""Appends tokens to the session up to its first stop, sets ``finish`` there, returns how many it took.
The rows ``[vocab_size]`` are the target's logits that each token was judged by."""

Settled = tuple[Session, Proposal, Verdict, Forward]
"""What a round brought for one session; the forward holds its rows alone."""


class TargetDistributions(Sequence[Distribution]):
    """The target's distributions after the pending token and after each node, worked out when first asked for:
    an acceptance rule looks only at the rows along the path that it accepts.

    ``errors``: of the rows whose distribution cannot be had. A rule may look at rows that it does not accept (``block``
    does), and an error there must not end the request. So it is given a placeholder, and the round ends before the
    first accepted row that has an error. The output before that row is right: a lossless rule is exact whatever
    distribution stands in it."""

    def __init__(self, session: Session, proposal: Proposal, logits: Rows) -> None:
        self._session, self._proposal, self._logits = session, proposal, logits  # logits: [nodes + 1, vocab]
        self._distributions: dict[int, Distribution] = {}
        self.errors: dict[int, Exception] = {}

    def __len__(self) -> int:
        return len(self._proposal) + 1

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence wants slices, nobody asks for them
        if index not in self._distributions:
            path = [self._proposal.tokens[node] for node in self._proposal.path(index - 1)]
            pipeline = self._session.target_pipeline or self._session.pipeline
            try:
                self._distributions[index] = pipeline.distribution(self._logits[index], [*self._session.tokens, *path])
            except Exception as error:
                self.errors[index] = error
                self._distributions[index] = Distribution.point(0)
        return self._distributions[index]


class Loop:
    """Runs rounds over any set of admitted sessions. Not safe for several threads at once: see Engine.

    ``drafter`` and ``rule`` serve sessions that name none of their own. ``prefill_rows``: prompt rows a pass.
    ``prefix_bytes``: memory for the prefix cache, 0 for none.
    """

    def __init__(
        self,
        runtime: Runtime,
        drafter: Drafter,
        rule: Rule,
        commit: Commit,
        *,
        controller: Controller | None = None,
        prefill_rows: int = 256,
        prefix_bytes: int = 0,
    ) -> None:
        self._runtime, self._drafter, self._rule, self._commit = runtime, drafter, rule, commit
        self._controller, self._prefill_rows = controller, prefill_rows
        self._trees = runtime.capabilities().trees
        self.cache: KVCache = runtime.new_cache()
        # Other chunks of a prompt may round otherwise where rows are not invariant: nothing is reused there.
        self.prefix_cache = PrefixCache(self.cache, prefix_bytes if runtime.capabilities().row_invariant else 0)
        self.cache_user = CacheUser(self.prefix_cache, _text_entries)

    def admit(self, sessions: Sequence[Session]) -> None:
        """Give each session a slot, with what the prefix cache has of its prompt, and tell its drafters."""
        for session in sessions:
            session.rule = session.rule or self._rule
            if not session.draft.drafters:
                session.draft.drafter_name = session.draft.drafter_name or "draft"
                session.draft.drafters = {session.draft.drafter_name: self._drafter}
            # A drafter that wants features wants those of the whole prompt.
            reuse = not any(drafter.needs for drafter in session.draft.drafters.values())
            session.cache = self.cache
            text = session.tokens[:-1] if reuse else []
            capacity = _text_entries(session.request.limit)
            session.slot = self.prefix_cache.open(text, session.request.tenant, capacity)
            session.report.prompt_cached = self.cache.length(session.slot)
            if session.draft.gamma > 0:
                for name in list(session.draft.drafters):
                    try:
                        session.draft.cached[name] = session.draft.drafters[name].begin(session) or 0
                    except Exception as error:  # whatever a drafter does, the target still answers
                        self._switch_off(session, name, error)

    def release(self, session: Session) -> None:
        """Free what the session holds; safe at any point after admit."""
        if session.slot >= 0:
            text = session.tokens if session.error is None else []
            self.prefix_cache.close(session.slot, text, session.request.tenant)
            session.slot = -1
        for drafter in session.draft.drafters.values():
            self._end(drafter, session)

    def round(self, sessions: Sequence[Session]) -> None:
        """One round. Sessions in their prefill share ``prefill_rows``, in order; each other session gains at least one
        token, unless it fails."""
        decoding = [session for session in sessions if self._uncached(session) == 0]
        prompts = self._prompt_chunks(sessions)
        clock = RoundClock(decoding)

        proposals = self._propose(decoding)
        clock.lap()
        draft_chunks = [_chunk(session, proposal) for session, proposal in zip(decoding, proposals, strict=True)]
        forward = self._pass(prompts, decoding, draft_chunks)
        clock.lap()
        verdicts = [self._verify(s, p, rows) for s, p, rows in zip(decoding, proposals, forward.logits, strict=True)]
        clock.lap()
        settled = []
        for i, (session, proposal, verdict) in enumerate(zip(decoding, proposals, verdicts, strict=True)):
            if verdict is not None:
                seen = _only(forward, i)
                self._settle(session, proposal, verdict, seen.logits[0], alone=len(sessions) == 1)
                if session.error is None:
                    settled.append((session, proposal, verdict, seen))
        self._observe(settled)
        seconds = clock.book(prompts, draft_chunks)

        if self._controller is not None and settled:
            self._controller.observe(*_columns(settled), seconds)

    def _uncached(self, session: Session) -> int:
        """Prompt tokens that are not cached yet, the pending one apart."""
        return len(session.tokens) - 1 - self.cache.length(session.slot)

    def _prompt_chunks(self, sessions: Sequence[Session]) -> list[tuple[Session, Chunk]]:
        """The pieces of prompts in this pass, first come, first served."""
        chunks, room = [], self._prefill_rows
        for session in sessions:
            rows = min(self._uncached(session), room)
            if rows > 0:
                done = self.cache.length(session.slot)
                chunks.append((session, Chunk(session.slot, session.tokens[done : done + rows], logits_from=rows)))
                room -= rows
        return chunks

    def _pass(
        self, prompts: Sequence[tuple[Session, Chunk]], decoding: Sequence[Session], draft_chunks: Sequence[Chunk]
    ) -> Forward:
        """One pass over all rows. Drafters see the rows of the prompts; those of the draft_chunks are returned."""
        firsts = [self.cache.length(session.slot) for session, _ in prompts]
        drafting = [s for s in (*(session for session, _ in prompts), *decoding) if s.draft.gamma > 0]
        needs = sorted({name for s in drafting for drafter in s.draft.drafters.values() for name in drafter.needs})
        forward = self._runtime.forward([*(chunk for _, chunk in prompts), *draft_chunks], self.cache, needs)
        for i, ((session, _), first) in enumerate(zip(prompts, firsts, strict=True)):
            for name, drafter in list(session.draft.drafters.items()):
                if drafter.needs and session.draft.gamma > 0:
                    try:
                        cast(ReadsFeatures, drafter).read(session, first, _only(forward, i))
                    except Exception as error:
                        self._switch_off(session, name, error)
        skipped = len(prompts)
        return Forward(forward.logits[skipped:], {name: rows[skipped:] for name, rows in forward.features.items()})

    def _propose(self, sessions: Sequence[Session]) -> list[Proposal]:
        """The drafters' proposals, or what they had recorded when they failed."""
        # The round adds a token of the target's own, so drafts beyond limit - 1 could never be emitted.
        budgets = [max(0, min(s.draft.gamma, s.request.limit - len(s.tokens) - 1)) for s in sessions]
        if self._controller is not None and any(session.draft.adaptive for session in sessions):
            chosen = self._controller.budgets(sessions, budgets)
            budgets = [
                max(0, min(most, less)) if session.draft.adaptive else most
                for session, most, less in zip(sessions, budgets, chosen, strict=True)
            ]
        for session, budget in zip(sessions, budgets, strict=True):
            session.begin_draft(budget, self._runtime.vocab_size, self._trees)
        proposals = [Proposal() for _ in sessions]
        for drafter, members in _by_drafter([(i, s) for i, s in enumerate(sessions) if budgets[i] > 0]):
            try:
                answers = drafter.propose([sessions[i] for i in members], [budgets[i] for i in members])
                if len(answers) != len(members):
                    raise DrafterError(f"{len(answers)} proposals came for {len(members)} sessions")
            except Exception as error:
                for i in members:
                    self._warn(sessions[i], error)
                answers = [sessions[i].record.proposal() for i in members]
            for i, proposal in zip(members, answers, strict=True):
                proposals[i] = self._checked(sessions[i], proposal, budgets[i])
        return proposals

    def _checked(self, session: Session, proposal: Proposal, budget: int) -> Proposal:
        """The proposal; where it breaks the contract, what was recorded."""
        record = session.record
        if record.error is not None:
            self._warn(session, record.error)
        for found in (proposal, record.proposal()):
            try:
                found.check(self._runtime.vocab_size, budget, record.trees)
                if session.rule.NEEDS_DISTRIBUTIONS:
                    record.check(found)
                return found
            except Exception as error:
                self._warn(session, error)
        return Proposal()

    def _verify(self, session: Session, proposal: Proposal, logits: Rows) -> Verdict | None:
        """The rule's verdict. A distribution that cannot be had ends this session there, and leaves the others
        alone."""
        distributions = TargetDistributions(session, proposal, logits)
        try:
            verdict = session.rule.verify(proposal, distributions, session.rng, len(session.tokens))
        except Exception as error:
            session.finish, session.error = "error", error
            self.cache.keep(session.slot, len(session.tokens) - 1, [])
            return None
        for depth, node in enumerate((-1, *verdict.path)):
            if node + 1 in distributions.errors:
                session.error = distributions.errors[node + 1]
                # _settle leaves the token out; "bonus" makes ``tested`` the number of accepted drafts.
                return Verdict(verdict.path[:depth], verdict.token, "bonus")
        return verdict

    def _settle(self, session: Session, proposal: Proposal, verdict: Verdict, logits: Rows, *, alone: bool) -> None:
        """Commit what is accepted, keep it in the cache, and count it. ``alone``: no other request shared the pass."""
        base = len(session.tokens)
        tokens = [proposal.tokens[node] for node in verdict.path]
        if session.error is None:  # otherwise there is no distribution to take it from
            tokens.append(verdict.token)
        taken = self._commit(session, tokens, [logits[node + 1] for node in (-1, *verdict.path)][: len(tokens)])
        if session.error is not None:
            if session.finish is None:
                session.finish = "error"
            else:  # it ended before
                session.error = None
        # The last token taken is the next pending one; those before it stay cached behind the old one.
        self.cache.keep(session.slot, base - 1, [0, *(node + 1 for node in verdict.path)][:taken])
        sources = proposal.origins or [session.draft.drafter_name] * len(proposal)
        origins = [*(sources[node] for node in verdict.path), verdict.kind if len(proposal) else "plain"]
        session.origins += origins[:taken]
        report = session.report
        report.target_passes += 1
        report.drafted += len(proposal)
        report.emitted += taken
        report.accepted += min(taken, len(verdict.path))
        report.tested += min(taken, verdict.tested)
        if alone and session.error is None:
            report.rows[len(proposal) + 1] = report.rows.get(len(proposal) + 1, 0) + 1

    def _observe(self, settled: Sequence[Settled]) -> None:
        """Tell every drafter of every session what the round brought."""
        told: dict[int, tuple[Drafter, list[tuple[Session, str, Verdict, Forward]]]] = {}
        for session, _, verdict, seen in settled:
            if session.draft.gamma > 0:
                for name, drafter in session.draft.drafters.items():
                    view = (verdict, seen) if name == session.draft.drafter_name else _as_chain(verdict, seen)
                    told.setdefault(id(drafter), (drafter, []))[1].append((session, name, *view))
        for drafter, members in told.values():
            sessions, names, verdicts, forwards = zip(*members, strict=True)
            try:
                drafter.observe(sessions, verdicts, forwards)
            except Exception as error:  # its state can no longer be trusted
                for session, name in zip(sessions, names, strict=True):
                    self._switch_off(session, name, error)

    def _switch_off(self, session: Session, name: str, error: Exception) -> None:
        """This drafter drafts no more for the session; where it was at work, nothing does."""
        self._warn(session, error)
        if name == session.draft.drafter_name:
            session.draft.gamma = 0
        else:
            drafter = session.draft.drafters[name]
            session.draft.drafters = {other: one for other, one in session.draft.drafters.items() if other != name}
            self._end(drafter, session)

    def _end(self, drafter: Drafter, session: Session) -> None:
        try:
            drafter.end(session)
        except Exception as error:
            self._warn(session, error)

    def _warn(self, session: Session, error: Exception) -> None:
        """Report the session's first failure to draft: later ones may differ in words, not in effect."""
        if not any(warning.startswith(_FAILED) for warning in session.report.warnings):
            session.report.warnings.append(f"{_FAILED}: {type(error).__name__}: {error}")
            logger.warning("%s", session.report.warnings[-1])


def _text_entries(tokens: int) -> int:
    """Entries of a slot whose text, and what is drafted behind it, reaches ``tokens``."""
    return max(1, tokens)


def _chunk(session: Session, proposal: Proposal) -> Chunk:
    """The pending token and the proposal behind it; row ``n + 1`` is node ``n``."""
    parents = None if proposal.is_chain else [-1, *(parent + 1 for parent in proposal.parents)]
    return Chunk(session.slot, [session.pending, *proposal.tokens], parents)


def _columns(settled: Sequence[Settled]) -> tuple[list[Session], list[Proposal], list[Verdict]]:
    """Sessions, proposals and verdicts."""
    return [one[0] for one in settled], [one[1] for one in settled], [one[2] for one in settled]


def _only(forward: Forward, i: int) -> Forward:
    """The part of a pass that belongs to one chunk."""
    return Forward([forward.logits[i]], {name: [rows[i]] for name, rows in forward.features.items()})


def _as_chain(verdict: Verdict, seen: Forward) -> tuple[Verdict, Forward]:
    """The accepted tokens as if they had been proposed as a chain, and the rows of these alone."""
    rows: slice | list[int] = [0, *(node + 1 for node in verdict.path)]
    if verdict.path == list(range(len(verdict.path))):  # a view: rows of a big vocabulary are not copied for nothing
        rows = slice(len(verdict.path) + 1)
    part = {name: [tensors[0][rows]] for name, tensors in seen.features.items()}
    return Verdict(list(range(len(verdict.path))), verdict.token, verdict.kind), Forward([seen.logits[0][rows]], part)


def _by_drafter(members: Sequence[tuple[int, Session]]) -> Iterator[tuple[Drafter, list[int]]]:
    """Places of the sessions that share the drafter at work."""
    groups: dict[int, tuple[Drafter, list[int]]] = {}
    for i, session in members:
        groups.setdefault(id(session.draft.drafter), (session.draft.drafter, []))[1].append(i)
    yield from groups.values()
