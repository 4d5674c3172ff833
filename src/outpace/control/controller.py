"""The controller: how much to draft in each round, so that no answer is slower than plain decoding.

A round's expected tokens come from :mod:`.acceptance`, or from a drafter's own forecast, its seconds from
:mod:`.cost_model`, and :mod:`.allocation` finds the nodes that bring the most tokens a second; none at all is always
among the choices. Everything it knows comes from rounds that are over (:mod:`.learning`), so that the distribution of
the output stays the target's (``outpace audit`` enumerates it).

It also decides when a drafter catches up with the text: a draft model needs a prefill of the prompt before it can
draft, which is worth it only when enough of the answer is still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from ..core.protocols import Session, forecast_of
from ..core.types import Proposal, RoundSeconds, Verdict
from .allocation import Allocation, Candidate, allocate
from .cost_model import CostModel
from .learning import SessionRound, count, learn
from .pass_costs import PassCosts
from .state import SessionState, States

_MARGIN = 1.02  # times plain decoding's tokens a second that drafting must promise; chosen by hand
# A drafter's prefill must be expected to pay so many times over (chosen by hand), and make the request slower than
# plain by this share with no more than this probability: 0.2 cost code 5% of its gain (docs/log.md, 2026-11-30).
_PAYS, _SLOWER, _RISK = 1.5, 0.03, 0.4
# Seconds of plain rounds for each second of the prefill, before it, where another drafter needs none: replays of edits
# reached 98% of the best fixed setting with it and 85% without (docs/log.md, 2026-11-30, later).
_PATIENCE = 0.4
_OWN_TIME = 0.03  # of the seconds that pass, at most, that deciding and learning may take; chosen by hand
_CHECK_EVERY = 64  # rounds after which a plain one shows again what plain decoding costs; chosen by hand
_TRY_AGAIN = 8  # rounds before a drafter is tried again, twice as many after each try, up to _LONGEST_WAIT
_LONGEST_WAIT = 64
_TRY_NODES = 2  # that a try may draft; chosen by hand, as the two above
_MOST_CERTAIN = 0.9  # the greatest threshold at which a drafter is told to stop; chosen by hand


def _forecast(session: Session, name: str) -> Callable[[Session, int], list[float]] | None:
    """The drafter's own forecast, of one that has it."""
    return forecast_of(session.draft.drafters[name])


class AutoController:
    """Decides nodes a round for adaptive sessions (the Controller protocol).

    ``target``: costs of the target's passes. ``drafts``: costs of the models behind drafters. ``prior``: P(a proposed
    node is accepted) of a drafter that has not been seen at work, by its name. ``clock``: seconds, for its own time.
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
        self._states = States(prior)
        self._last: tuple[list[int], list[int]] = ([], [])  # ids of the sessions last decided for, and their nodes
        self._rest = 0.0  # seconds of rounds until the next decision: where these are short, not every one is new
        self._fresh = True  # whether this round's decision is
        self._once = False  # whether that decision holds for one round only

    def budgets(self, sessions: Sequence[Session], most: Sequence[int]) -> list[int]:
        """Nodes for each session. Sets ``drafter_name`` and ``stop_below`` of adaptive sessions."""
        states = [self._states.of(session) for session in sessions]
        ids = [session.id for session in sessions]
        self._fresh = self._rest <= 0 or ids != self._last[0]
        if self._fresh:
            start = self._clock()
            nodes = self._decide(sessions, most, states)
            self._rest = (self._clock() - start) / _OWN_TIME
            self._last = ([] if self._once else ids), nodes
        else:
            nodes = [min(a, b) for a, b in zip(self._last[1], most, strict=True)]
        for session, state, budget in zip(sessions, states, nodes, strict=True):
            state.begin_round(session, budget)
        return nodes

    def observe(
        self,
        sessions: Sequence[Session],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict],
        seconds: RoundSeconds,
    ) -> None:
        """Learn from a round."""
        start = self._clock()
        states = [self._states.of(session) for session in sessions]
        rounds = [SessionRound(*one) for one in zip(sessions, states, proposals, verdicts, strict=True)]
        count(rounds, seconds, self.cost_model)
        self._rest -= sum(seconds[:4])
        if self._fresh:
            learn(rounds, seconds, self._states, self.cost_model)
            self._rest += (self._clock() - start) / _OWN_TIME

    def prior(self, tenant: str = "") -> dict[str, float]:
        """P(a proposed node is accepted) of each drafter that was at work."""
        seen = {name: one for name, one in self._states.tenant(tenant).acceptance.items() if one.rounds}
        return {name: one.accept_prob(0) / max(one.accept_prob(0), one.propose_prob(0)) for name, one in seen.items()}

    def _decide(self, sessions: Sequence[Session], most: Sequence[int], states: Sequence[SessionState]) -> list[int]:
        candidates = []  # of each session; the adaptive ones decode plainly so far
        for session, state, budget in zip(sessions, states, most, strict=True):
            least = 0 if session.draft.adaptive else budget
            one = self._candidate(session, state, session.draft.drafter_name, budget, least)
            candidates.append(Candidate(one.drafter, one.entries) if session.draft.adaptive else one)
        without = allocate(candidates, self.cost_model)
        self._once = False
        choices: dict[int, list[Candidate]] = {}  # by session: what it may do besides decoding plainly
        for i, (session, state) in enumerate(zip(sessions, states, strict=True)):
            if not session.draft.adaptive or not most[i]:
                continue
            # The first token waits for nothing: neither for a draft's prefill of the prompt nor for more rows.
            if not session.report.emitted or state.rounds_since_plain >= _CHECK_EVERY:
                self._once = True
            else:
                choices[i] = [self._foreseen(session, state, name, most[i]) for name in session.draft.drafters]
        chosen = self._choose(sessions, states, candidates, choices, without)
        for i, mine in choices.items():
            others = [one for one in mine if one is not candidates[i] and not _forecast(sessions[i], one.drafter)]
            trial = self._try(sessions[i], states[i], candidates, i, others, chosen.rate)
            if trial is not None:
                candidates[i], self._once = trial, True
            elif any(one is candidates[i] for one in mine):
                states[i].try_wait.pop(candidates[i].drafter, None)
            sessions[i].draft.drafter_name = candidates[i].drafter
        if any(candidate.least for candidate in candidates):
            chosen = allocate(candidates, self.cost_model)
        elif chosen.rate < _MARGIN * without.rate:
            return without.nodes
        threshold = min(_MOST_CERTAIN, chosen.rate * max(0.0, chosen.node_seconds))
        for session in sessions:
            if session.draft.adaptive:  # what a drafter's own forecast made worth drafting, is drafted
                own = _forecast(session, session.draft.drafter_name) is not None
                session.draft.stop_below = 0.0 if own else threshold
        return chosen.nodes

    def _candidate(self, session: Session, state: SessionState, name: str, most: int, least: int = 0) -> Candidate:
        probs = self._states.acceptance(state, name).forecast(most) if most else ([], [])
        return Candidate(name, len(session.tokens) - 1, most, least, *probs)

    def _foreseen(self, session: Session, state: SessionState, name: str, most: int) -> Candidate:
        """With what the drafter itself knows of the nodes that it would propose, where it does."""
        forecast = _forecast(session, name)
        if forecast is None:
            return self._candidate(session, state, name, most)
        try:
            chances = forecast(session, most)[:most]
        except Exception:  # as if it had none; when it proposes, the loop reports what is wrong
            return self._candidate(session, state, name, most)
        return Candidate(name, len(session.tokens) - 1, len(chances), 0, chances, [1.0] * len(chances))

    def _choose(
        self,
        sessions: Sequence[Session],
        states: Sequence[SessionState],
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
            losing = [i for i in choices if not self._pays(sessions[i], states[i], trial[i], found, best)]
            if losing and found.rate > best.rate:
                for i in losing:
                    trial[i] = plainly[i]
                found = allocate(trial, self.cost_model)
            if found.rate > best.rate:
                candidates[:], best = trial, found
        for i, mine in choices.items() if len(choices) > 1 else ():
            for candidate in (candidate for candidate in mine if candidate is not candidates[i]):
                found = allocate([*candidates[:i], candidate, *candidates[i + 1 :]], self.cost_model)
                if found.rate > best.rate and self._pays(sessions[i], states[i], candidate, found, best):
                    candidates[i], best = candidate, found
        return best

    def _pays(
        self, session: Session, state: SessionState, candidate: Candidate, found: Allocation, without: Allocation
    ) -> bool:
        """Whether drafting in this way is worth what the drafter's prefill takes first."""
        saved = 1 / without.rate - 1 / found.rate  # seconds a token
        prefill = self.cost_model.prefill(candidate.drafter, state.behind(session, candidate.drafter))
        if saved <= 0 or prefill <= 0:
            return saved > 0
        patient = any(_forecast(session, name) for name in session.draft.drafters)
        if patient and state.slow_seconds < _PATIENCE * prefill:
            return False
        left = session.request.limit - len(session.tokens)
        done = len(session.tokens) - session.request.prompt_length
        lengths = [(1.0, left)] if session.request.params.ignore_eos else state.tenant.lengths.remaining(done, left)
        passed = session.report.seconds_prefill + done / without.rate
        risk = sum(p for p, n in lengths if prefill - saved * n > _SLOWER * (passed + n / without.rate))
        return risk <= _RISK and saved * sum(p * n for p, n in lengths) > _PAYS * prefill

    def _try(
        self,
        session: Session,
        state: SessionState,
        candidates: list[Candidate],
        i: int,
        others: Sequence[Candidate],
        usual: float,
    ) -> Candidate | None:
        """A drafter that is not the best as far as is known, when what it may lose against the ``usual`` tokens a
        second has been saved up, and its prefill would not be what makes this request slow."""
        waiting = [one for one in others if state.rounds >= state.try_at.get(one.drafter, 0)]
        if not waiting:
            return None
        candidate = min(waiting, key=lambda one: state.try_at.get(one.drafter, 0))
        name, nodes = candidate.drafter, min(_TRY_NODES, candidate.most)
        trial = replace(candidate, most=nodes, least=nodes)
        found = allocate([*candidates[:i], trial, *candidates[i + 1 :]], self.cost_model)
        prefill = self.cost_model.prefill(name, state.behind(session, name))
        loss = found.seconds - found.tokens / usual + prefill
        if loss > state.tenant.credit or prefill > _SLOWER * state.seconds:
            return None
        state.tenant.credit -= max(0.0, loss)
        state.try_wait[name] = min(_LONGEST_WAIT, 2 * state.try_wait.get(name, _TRY_AGAIN // 2))
        state.try_at[name] = state.rounds + state.try_wait[name]
        return trial
