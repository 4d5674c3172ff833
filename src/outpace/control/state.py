"""What the controller knows of sessions and of tenants."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.protocols import Session
from .acceptance import Acceptance, Prior
from .answer_lengths import AnswerLengths

_PRIOR = 0.75  # P(a proposed node is accepted) of a drafter never seen at work; chosen by hand
# Trust in that prior against what requests show, times the usual: the rounds of one request are much alike, and one
# text that nothing could draft for stopped all drafting for 18 requests (docs/log.md, 2026-11-30, replays).
_TENANT_TRUST = 4.0
_TENANT_KEEP = 0.998  # of a tenant's counts, a round; chosen by hand
_TENANTS = 256  # the latest ones are remembered


@dataclass
class TenantState:
    """What the requests of one tenant have shown together."""

    acceptance: dict[str, Acceptance] = field(default_factory=dict)  # by drafter
    lengths: AnswerLengths = field(default_factory=AnswerLengths)
    credit: float = 0.0  # seconds that may be lost by trying


@dataclass
class SessionState:
    """What is known of one session. The dicts are by drafter; rounds are numbered as the session had them."""

    tenant: TenantState
    alive: weakref.ref[Session]
    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)  # tokens of the text that a drafter has cached
    try_at: dict[str, int] = field(default_factory=dict)  # round from which on a drafter may be tried again
    try_wait: dict[str, int] = field(default_factory=dict)  # rounds that it has waited for the last try
    last_round: dict[str, int] = field(default_factory=dict)  # in which a drafter was at work
    rounds: int = 0
    rounds_since_plain: int = 0
    seconds: float = 0.0  # that the request has taken
    slow_seconds: float = 0.0  # of its rounds, less those that accepted nodes have saved
    # Before the round that is under way:
    budget: int = 0
    length: int = 0  # tokens of the text
    prefill_seconds: float = 0.0  # of drafters

    def behind(self, session: Session, drafter: str) -> int:
        """Tokens of the text that a drafter has not cached."""
        return len(session.tokens) - self.cached.get(drafter, 0)

    def begin_round(self, session: Session, budget: int) -> None:
        """Note what a round that is about to begin will be compared with."""
        self.budget, self.length = budget, len(session.tokens)
        self.prefill_seconds = session.report.seconds_draft_prefill


class States:
    """The states of all sessions and of the latest tenants. ``prior``: P(a proposed node is accepted) of drafters that
    have not been seen at work."""

    def __init__(self, prior: Mapping[str, float] | None) -> None:
        self._prior = dict(prior or {})
        self._tenants: OrderedDict[str, TenantState] = OrderedDict()
        self._sessions: dict[int, SessionState] = {}

    def of(self, session: Session) -> SessionState:
        """The session's state; a new one at its first round."""
        state = self._sessions.get(session.id)
        if state is None or state.alive() is not session:
            # Sessions end in many ways, and only some of them are seen from here.
            alive = weakref.ref(session, functools.partial(_forget, self._sessions, session.id))
            state = SessionState(self.tenant(session.request.tenant), alive, cached=dict(session.draft.cached))
            self._sessions[session.id] = state
        return state

    def tenant(self, name: str) -> TenantState:
        """The tenant's state; a new one where it is not among the latest."""
        tenant = self._tenants.setdefault(name, TenantState())
        self._tenants.move_to_end(name)
        if len(self._tenants) > _TENANTS:
            self._tenants.popitem(last=False)
        return tenant

    def acceptance(self, state: SessionState, drafter: str) -> Acceptance:
        """The session's counts of a drafter, whose prior is what all sessions of its tenant have shown."""
        if drafter not in state.acceptance:
            state.acceptance[drafter] = Acceptance(self.tenant_acceptance(state.tenant, drafter))
        return state.acceptance[drafter]

    def tenant_acceptance(self, tenant: TenantState, drafter: str) -> Acceptance:
        """What all sessions of a tenant have shown of a drafter."""
        if drafter not in tenant.acceptance:
            prior = Prior(self._prior.get(drafter, _PRIOR))
            tenant.acceptance[drafter] = Acceptance(prior, keep=_TENANT_KEEP, trust=_TENANT_TRUST)
        return tenant.acceptance[drafter]


def _forget(sessions: dict[int, SessionState], number: int, gone: weakref.ref[Session]) -> None:
    if number in sessions and sessions[number].alive is gone:
        del sessions[number]
