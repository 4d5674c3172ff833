"""The controller: how much to draft in each round, so that no answer is slower than plain decoding.

A round's expected tokens come from :mod:`.acceptance`, or from a drafter's own forecast, its seconds from
:mod:`.timing`, and :mod:`.allocation` finds the nodes that bring the most tokens a second; none at all is always among
the choices. Everything it knows comes from rounds that are over, so that the distribution of the output stays the
target's (``outpace audit`` enumerates it).

It also decides when a drafter reads the text: a draft model must read the prompt before it can draft, which is
worth it only when enough of the answer is still to come.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ..core.protocols import Session, forecast_of
from ..core.types import Proposal, RoundSeconds, Verdict
from .acceptance import Acceptance, Guess
from .allocation import Allocation, Candidate, allocate, plain
from .costs import PassCosts
from .lengths import Lengths
from .timing import CostModel

_MARGIN = 1.02  # drafting must promise this much, or the round is plain
_PAYS = 1.5  # reading the text must be expected to pay so many times over,
_SLOWER, _RISK = 0.03, 0.4  # and make the request slower than plain by this share with no more than this chance
_PATIENCE = 0.4  # plain seconds for each second of reading, before it: a drafter that reads nothing may yet do
_OWN_TIME = 0.03  # of the seconds that pass, at most, that deciding and learning may take
_CREDIT = 0.01  # of the seconds that passed, for trying what is not the best
_SAVED_CREDIT = 0.05  # and of the seconds that drafting has saved
_CREDIT_ROUNDS = 40  # plain rounds whose seconds may be saved up
_CHECK_EVERY = 64  # rounds after which a plain one shows again what plain decoding costs
_TRY_AGAIN = 8  # rounds before a drafter is tried again, twice as many after each try
_TRY_NODES = 2
_LONGEST_WAIT = 64
_BELIEVED = 0.75  # P(a draft stands) of a drafter never seen at work
_TRUST = 4.0  # in that belief against what requests show: the rounds of one request are much alike
_TENANTS = 256


@dataclass
class _Tenant:
    """What the requests of one tenant have shown together."""

    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)
    credit: float = 0.0  # seconds that may be lost by trying


@dataclass
class _Known:
    """What is known of one session."""

    tenant: _Tenant
    alive: weakref.ref[Session]
    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)  # tokens of the text that a drafter has read
    again: dict[str, int] = field(default_factory=dict)  # round from which on a drafter may be tried again
    wait: dict[str, int] = field(default_factory=dict)  # rounds that it has waited for the last try
    last: dict[str, int] = field(default_factory=dict)  # round in which a drafter was last at work
    rounds: int = 0
    unchecked: int = 0  # rounds since the last plain one
    seconds: float = 0.0  # that the request has taken
    plainly: float = 0.0  # seconds of rounds that brought a token, less those that drafts have saved
    budget: int = 0
    text: int = 0  # tokens before the round
    read_seconds: float = 0.0  # of catching up, before the round


def _forecast(session: Session, name: str) -> Callable[[Session, int], list[float]] | None:
    """The drafter's own forecast, of one that has it."""
    return forecast_of(session.drafters[name])


def _forget(known: dict[int, _Known], number: int, gone: weakref.ref[Session]) -> None:
    if number in known and known[number].alive is gone:
        del known[number]


class AutoController:
    """Decides nodes a round for adaptive sessions (the Controller protocol).

    ``target``: costs of the target's passes. ``drafts``: costs of the models behind drafters. ``prior``: P(a draft
    stands) of a drafter that has not been seen at work, by its name. ``clock``: seconds, for its own time.
    """

    def __init__(
        self,
        target: PassCosts,
        drafts: Mapping[str, PassCosts],
        prior: Mapping[str, float] | None = None,
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._clock = clock
        self.cost_model = CostModel(target, drafts)
        self._prior = dict(prior or {})
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._known: dict[int, _Known] = {}
        self._last: tuple[list[int], list[int]] = ([], [])
        self._rest = 0.0  # seconds of rounds until the next decision: where these are short, not every one is new
        self._fresh = True  # whether this round's decision is
        self._once = False  # whether that decision holds for one round only

    def budgets(self, sessions: Sequence[Session], most: Sequence[int]) -> list[int]:
        """Nodes for each session. Sets ``drafter_name`` and ``stop_below`` of adaptive sessions."""
        known = [self._of(session) for session in sessions]
        ids = [session.id for session in sessions]
        self._fresh = self._rest <= 0 or ids != self._last[0]
        if self._fresh:
            start = self._clock()
            out = self._decide(sessions, most, known)
            self._rest = (self._clock() - start) / _OWN_TIME
            self._last = ([] if self._once else ids), out
        else:
            out = [min(a, b) for a, b in zip(self._last[1], most, strict=True)]
        for session, one, budget in zip(sessions, known, out, strict=True):
            one.budget, one.text, one.read_seconds = budget, len(session.tokens), session.report.seconds_draft_prefill
        return out

    def prior(self, tenant: str = "") -> dict[str, float]:
        """P(a draft stands) of each drafter that was at work, given that it was proposed."""
        seen = self._tenant(tenant).acceptance
        return {name: one.stands(0) / max(one.stands(0), one.comes(0)) for name, one in seen.items() if one.rounds}

    def _decide(self, sessions: Sequence[Session], most: Sequence[int], known: Sequence[_Known]) -> list[int]:
        fixed = [
            self._candidate(s, k, s.drafter_name, m, least=0 if s.adaptive else m)
            for s, m, k in zip(sessions, most, known, strict=True)
        ]
        candidates = [
            Candidate(o.drafter, o.entries) if s.adaptive else o for s, o in zip(sessions, fixed, strict=True)
        ]
        without = allocate(candidates, self.cost_model)
        self._once = False
        choices: dict[int, list[Candidate]] = {}  # by session: what it may do besides decoding plainly
        for i, (session, one) in enumerate(zip(sessions, known, strict=True)):
            if not session.adaptive or not most[i]:
                continue
            # The first token waits for nothing: neither for a draft that reads the prompt nor for more rows.
            if not session.report.emitted or one.unchecked >= _CHECK_EVERY:
                self._once = True
            else:
                choices[i] = [self._foreseen(session, one, name, most[i]) for name in session.drafters]
        chosen = self._choose(sessions, known, candidates, choices, without)
        for i, mine in choices.items():
            waiting = [o for o in mine if o is not candidates[i] and not _forecast(sessions[i], o.drafter)]
            tried = self._try(sessions[i], known[i], candidates, i, waiting, chosen.rate)
            if tried is not None:
                candidates[i], self._once = tried, True
            elif candidates[i] in mine:
                known[i].wait.pop(candidates[i].drafter, None)
            sessions[i].drafter_name = candidates[i].drafter
        if any(candidate.least for candidate in candidates):
            chosen = allocate(candidates, self.cost_model)
        elif chosen.rate < _MARGIN * without.rate:
            return without.nodes
        below = min(0.9, chosen.rate * max(0.0, chosen.more))
        for session in sessions:
            if session.adaptive:  # what a drafter's own forecast made worth drafting, is drafted
                session.stop_below = below if _forecast(session, session.drafter_name) is None else 0.0
        return chosen.nodes

    def _candidate(self, session: Session, one: _Known, name: str, most: int, least: int = 0) -> Candidate:
        standing, coming = self._acceptance(one, name).forecast(most) if most else ([], [])
        return Candidate(name, len(session.tokens) - 1, most, least, standing, coming)

    def _foreseen(self, session: Session, one: _Known, name: str, most: int) -> Candidate:
        """With what the drafter itself knows of the nodes that it would propose, where it does."""
        forecast = _forecast(session, name)
        if forecast is None:
            return self._candidate(session, one, name, most)
        try:
            chances = forecast(session, most)[:most]
        except Exception:  # as if it had none; when it proposes, the loop reports what is wrong
            return self._candidate(session, one, name, most)
        return Candidate(name, len(session.tokens) - 1, len(chances), 0, chances, [1.0] * len(chances))

    def _choose(
        self,
        sessions: Sequence[Session],
        known: Sequence[_Known],
        candidates: list[Candidate],
        choices: Mapping[int, Sequence[Candidate]],
        best: Allocation,
    ) -> Allocation:
        """Put the candidates that are best together in the place of plain ones, and share out the round. Drafting alone
        may not pay where drafting together does, because a draft's step serves all that take part: so all with the
        same drafter come first, and then each on its own."""
        plainly = list(candidates)
        for name in dict.fromkeys(candidate.drafter for mine in choices.values() for candidate in mine):
            trial = list(plainly)
            for i, mine in choices.items():
                trial[i] = next((candidate for candidate in mine if candidate.drafter == name), plainly[i])
            found = allocate(trial, self.cost_model)
            refused = [i for i in choices if not self._pays(sessions[i], known[i], trial[i], found, best)]
            if refused and found.rate > best.rate:
                for i in refused:
                    trial[i] = plainly[i]
                found = allocate(trial, self.cost_model)
            if found.rate > best.rate:
                candidates[:], best = trial, found
        for i, mine in choices.items() if len(choices) > 1 else ():
            for candidate in (candidate for candidate in mine if candidate is not candidates[i]):
                found = allocate([*candidates[:i], candidate, *candidates[i + 1 :]], self.cost_model)
                if found.rate > best.rate and self._pays(sessions[i], known[i], candidate, found, best):
                    candidates[i], best = candidate, found
        return best

    def _pays(
        self, session: Session, one: _Known, candidate: Candidate, found: Allocation, without: Allocation
    ) -> bool:
        """Whether drafting in this way is worth what it takes to read the text first."""
        saved = 1 / without.rate - 1 / found.rate  # seconds a token
        reading = self.cost_model.reading(candidate.drafter, self._behind(session, one, candidate.drafter))
        if saved <= 0 or reading <= 0:
            return saved > 0
        if one.plainly < _PATIENCE * reading and any(_forecast(session, name) for name in session.drafters):
            return False
        left, done = session.limit - len(session.tokens), len(session.tokens) - session.prompt_length
        to_come = [(1.0, left)] if session.params.ignore_eos else one.tenant.lengths.to_come(done, left)
        passed = session.report.seconds_prefill + done / without.rate
        risk = sum(p for p, n in to_come if reading - saved * n > _SLOWER * (passed + n / without.rate))
        return risk <= _RISK and saved * sum(p * n for p, n in to_come) > _PAYS * reading

    def _try(
        self,
        session: Session,
        one: _Known,
        candidates: list[Candidate],
        i: int,
        others: Sequence[Candidate],
        usual: float,
    ) -> Candidate | None:
        """A drafter that is not the best as far as is known, when what it may lose against the ``usual`` tokens a
        second has been saved up, and its reading would not be what makes this request slow."""
        waiting = [o for o in others if one.rounds >= one.again.get(o.drafter, 0)]
        if not waiting:
            return None
        candidate = min(waiting, key=lambda o: one.again.get(o.drafter, 0))
        nodes = min(_TRY_NODES, candidate.most)
        trying = Candidate(candidate.drafter, candidate.entries, nodes, nodes, candidate.standing, candidate.coming)
        found = allocate([*candidates[:i], trying, *candidates[i + 1 :]], self.cost_model)
        reading = self.cost_model.reading(candidate.drafter, self._behind(session, one, candidate.drafter))
        loss = found.seconds - found.tokens / usual + reading
        if loss > one.tenant.credit or reading > _SLOWER * one.seconds:
            return None
        one.tenant.credit -= max(0.0, loss)
        one.wait[candidate.drafter] = min(_LONGEST_WAIT, 2 * one.wait.get(candidate.drafter, _TRY_AGAIN // 2))
        one.again[candidate.drafter] = one.rounds + one.wait[candidate.drafter]
        return trying

    def _behind(self, session: Session, one: _Known, name: str) -> int:
        return len(session.tokens) - one.read.get(name, 0)

    def observe(
        self,
        sessions: Sequence[Session],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict],
        seconds: RoundSeconds,
    ) -> None:
        """Learn from a round."""
        start = self._clock()
        known = [self._of(session) for session in sessions]
        rounds = list(zip(sessions, known, proposals, verdicts, strict=True))
        passed = sum(seconds[:4])
        for session, one, proposal, verdict in rounds:
            one.rounds += 1
            one.seconds += passed + (session.report.seconds_prefill if one.rounds == 1 else 0.0)
            one.unchecked = one.unchecked + 1 if len(proposal) else 0
            one.plainly = max(0.0, one.plainly + (1 - len(verdict.path)) * passed)
            if one.budget:
                self._learn_reading(session, one)
                one.read[session.drafter_name] = one.text + len(verdict.path)
            if session.finish in ("stop", "length"):
                one.tenant.lengths.add(len(session.tokens) - session.prompt_length)
        self._rest -= passed
        if self._fresh:
            self._learn(rounds, seconds)
            self._rest += (self._clock() - start) / _OWN_TIME

    def _learn(self, rounds: Sequence[tuple[Session, _Known, Proposal, Verdict]], seconds: RoundSeconds) -> None:
        """What the round says of acceptance and of costs."""
        depths: dict[str, list[int]] = {}
        attention = 0.0
        for session, one, proposal, verdict in rounds:
            first, more = self.cost_model.attention(one.text - 1)
            attention += first + more * len(proposal)
            if one.budget:
                name = session.drafter_name
                depths.setdefault(name, []).append(min(one.budget, len(proposal) + 1))
                idle = one.rounds - one.last.get(name, one.rounds - 1) - 1
                self._acceptance(one, name).observe(one.budget, proposal, verdict, idle)
                one.tenant.acceptance[name].observe(one.budget, proposal, verdict)
                one.last[name] = one.rounds
                if 0 < len(proposal) == len(verdict.path):  # a try that went well is soon followed by another
                    one.again[name] = 0
        steps = {name: self._steps(name, made) for name, made in depths.items()}
        tokens = [len(verdict.path) + 1 for *_, verdict in rounds]
        rows = sum(len(proposal) + 1 for *_, proposal, _ in rounds)
        self.cost_model.observe(rows, attention, steps, sum(tokens), seconds)
        # What may be lost by trying: a part of the time, and of what drafting saves.
        none = plain([Candidate("", one.text - 1) for _, one, *_ in rounds], self.cost_model)
        for (session, one, *_), count in zip(rounds, tokens, strict=True):
            passed, alone = sum(seconds[:4]) / len(rounds), none.seconds / len(rounds)
            before = session.report.seconds_prefill if one.rounds == 1 else 0.0
            earned = _CREDIT * (passed + before) + _SAVED_CREDIT * max(0.0, count * alone - passed)
            one.tenant.credit = min(one.tenant.credit + earned, _CREDIT_ROUNDS * alone)

    def _learn_reading(self, session: Session, one: _Known) -> None:
        """What it cost the drafter to catch up with the text, if it did."""
        behind = self._behind(session, one, session.drafter_name) - (len(session.tokens) - one.text)
        reading = session.report.seconds_draft_prefill - one.read_seconds
        if reading > 0 and behind > 0:
            self.cost_model.observe_reading(session.drafter_name, behind, reading)

    def _steps(self, name: str, made: Sequence[int]) -> float:
        """Steps of a drafter in which fewer and fewer sessions take part, in steps of one session."""
        return sum(self.cost_model.step(name, sum(n > depth for n in made)) for depth in range(max(made)))

    def _acceptance(self, one: _Known, name: str) -> Acceptance:
        if name not in one.acceptance:
            one.acceptance[name] = Acceptance(self._together(one.tenant, name))
        return one.acceptance[name]

    def _together(self, tenant: _Tenant, name: str) -> Acceptance:
        """What all sessions of a tenant have shown of a drafter."""
        if name not in tenant.acceptance:
            guess = Guess(self._prior.get(name, _BELIEVED))
            tenant.acceptance[name] = Acceptance(guess, keep=0.998, trust=_TRUST)
        return tenant.acceptance[name]

    def _of(self, session: Session) -> _Known:
        one = self._known.get(session.id)
        if one is None or one.alive() is not session:
            # Sessions end in many ways, and only some of them are seen from here.
            alive = weakref.ref(session, functools.partial(_forget, self._known, session.id))
            one = self._known[session.id] = _Known(self._tenant(session.tenant), alive, read=dict(session.known))
        return one

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.setdefault(name, _Tenant())
        self._tenants.move_to_end(name)
        if len(self._tenants) > _TENANTS:
            self._tenants.popitem(last=False)
        return tenant
