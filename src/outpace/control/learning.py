"""What the controller learns from a round: the session's course, acceptance, costs, and what may be lost by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.protocols import Session
from ..core.types import Proposal, RoundSeconds, Verdict
from .allocation import Candidate, without_drafts
from .cost_model import CostModel
from .state import SessionState, States

# What may be lost by trying what is not the best: of the seconds that passed, and of those that drafting has saved.
# Chosen by hand.
_CREDIT, _SAVED_CREDIT = 0.01, 0.05
_CREDIT_ROUNDS = 40  # plain rounds whose seconds may be saved up; chosen by hand


class SessionRound(NamedTuple):
    """One session's part in a round."""

    session: Session
    state: SessionState
    proposal: Proposal
    verdict: Verdict


def count(rounds: Sequence[SessionRound], seconds: RoundSeconds, cost_model: CostModel) -> None:
    """What every round adds to the states of its sessions."""
    passed = sum(seconds[:4])
    for session, state, proposal, verdict in rounds:
        state.rounds += 1
        state.seconds += passed + (session.report.seconds_prefill if state.rounds == 1 else 0.0)
        state.rounds_since_plain = state.rounds_since_plain + 1 if len(proposal) else 0
        state.slow_seconds = max(0.0, state.slow_seconds + (1 - len(verdict.path)) * passed)
        if state.budget:
            _learn_prefill(session, state, cost_model)
            state.cached[session.draft.drafter_name] = state.length + len(verdict.path)
        if session.finish in ("stop", "length"):
            state.tenant.lengths.add(len(session.tokens) - session.request.prompt_length)


def learn(rounds: Sequence[SessionRound], seconds: RoundSeconds, states: States, cost_model: CostModel) -> None:
    """What the round says of acceptance and of costs."""
    steps_of: dict[str, list[int]] = {}  # by drafter: steps that it made for each session
    attention = 0.0
    for session, state, proposal, verdict in rounds:
        first, more = cost_model.attention(state.length - 1)
        attention += first + more * len(proposal)
        if state.budget:
            name = session.draft.drafter_name
            steps_of.setdefault(name, []).append(min(state.budget, len(proposal) + 1))
            idle = state.rounds - state.last_round.get(name, state.rounds - 1) - 1
            states.acceptance(state, name).observe(state.budget, proposal, verdict, idle)
            state.tenant.acceptance[name].observe(state.budget, proposal, verdict)
            state.last_round[name] = state.rounds
            if 0 < len(proposal) == len(verdict.path):  # a try that went well is soon followed by another
                state.try_at[name] = 0
    steps = {name: _shared_steps(name, made, cost_model) for name, made in steps_of.items()}
    tokens = [len(verdict.path) + 1 for *_, verdict in rounds]
    rows = sum(len(proposal) + 1 for *_, proposal, _ in rounds)
    cost_model.observe(rows, attention, steps, sum(tokens), seconds)
    without = without_drafts([Candidate("", state.length - 1) for _, state, *_ in rounds], cost_model)
    for (session, state, *_), made in zip(rounds, tokens, strict=True):
        passed, alone = sum(seconds[:4]) / len(rounds), without.seconds / len(rounds)
        before = session.report.seconds_prefill if state.rounds == 1 else 0.0
        earned = _CREDIT * (passed + before) + _SAVED_CREDIT * max(0.0, made * alone - passed)
        state.tenant.credit = min(state.tenant.credit + earned, _CREDIT_ROUNDS * alone)


def _learn_prefill(session: Session, state: SessionState, cost_model: CostModel) -> None:
    """What it cost the drafter to catch up with the text, if it did."""
    behind = state.behind(session, session.draft.drafter_name) - (len(session.tokens) - state.length)
    seconds = session.report.seconds_draft_prefill - state.prefill_seconds
    if seconds > 0 and behind > 0:
        cost_model.observe_prefill(session.draft.drafter_name, behind, seconds)


def _shared_steps(drafter: str, made: Sequence[int], cost_model: CostModel) -> float:
    """Steps of a drafter in which fewer and fewer sessions take part, in steps of one session."""
    return sum(cost_model.step(drafter, sum(n > depth for n in made)) for depth in range(max(made)))
