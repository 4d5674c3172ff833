"""Speculative decoding without a model: what a policy gains, given how often drafts stand and what passes cost.

The closed forms are the paper's (Leviathan et al., arXiv 2211.17192). The simulation runs the production controller,
or a fixed gamma, on rounds whose acceptance is drawn from given chances, or replayed from a log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..control.pass_costs import PassCosts
from ..core.protocols import Controller, Drafter, Drafting, Request, Session
from ..core.report import expected_tokens
from ..core.types import Proposal, RoundSeconds, Verdict
from ..drafters.common.text_cache import CATCH_UP_ROWS

Draft = Callable[[int, int], tuple[int, int]]
"""(tokens of the answer so far, nodes allowed) -> (nodes proposed, nodes that stand)."""


def speedup(alpha: float, gamma: int, c: float, v: Callable[[float], float] = lambda rows: 1.0) -> float:
    """Expected improvement of wall time (theorem 3.8; with ``v``, a pass over so many rows costs more than one)."""
    return expected_tokens(alpha, gamma) / (v(gamma + 1) + gamma * c)


def operations(alpha: float, gamma: int, c: float) -> float:
    """Factor by which the number of operations grows (theorem 3.11). ``c``: of a draft step / of a target step."""
    return (gamma * c + gamma + 1) / expected_tokens(alpha, gamma)


def best_gamma(alpha: float, c: float, v: Callable[[float], float] = lambda rows: 1.0, most: int = 32) -> int:
    """The gamma with the greatest expected improvement (figure 3); 0 where drafting does not pay."""
    return max(range(most + 1), key=lambda gamma: (speedup(alpha, gamma, c, v), -gamma))


def by_chance(alphas: float | Sequence[float], seed: int = 0) -> Draft:
    """Drafts that stand with chance ``alphas[depth]`` (the last one from there on), given that the one before did."""
    chances = [alphas] if isinstance(alphas, (int, float)) else list(alphas)
    rng = random.Random(seed)

    def draft(position: int, allowed: int) -> tuple[int, int]:
        accepted = 0
        while accepted < allowed and rng.random() < chances[min(accepted, len(chances) - 1)]:
            accepted += 1
        return allowed, accepted

    return draft


@dataclass(frozen=True)
class Logged:
    """A log of one answer: at each position, how many nodes were proposed when many were allowed, and how many of
    them accepted. Exact for a drafter whose proposals at a position do not depend on gamma, under ``match``.
    ``chances``: at each position its own forecast, of a drafter that has one."""

    proposed: Sequence[int]
    accepted: Sequence[int]
    chances: Sequence[Sequence[float]] = ()

    def __call__(self, position: int, allowed: int) -> tuple[int, int]:
        made = min(allowed, self.proposed[position])
        return made, min(made, self.accepted[position])

    @property
    def forecast(self) -> Callable[[Session, int], list[float]] | None:
        """As a drafter has it."""
        return (lambda session, most: list(self.chances[session.report.emitted][:most])) if self.chances else None


@dataclass(frozen=True)
class Truth:
    """What things cost: the target's passes, the passes of models behind drafters, drawing a token from the output of
    such a pass, and the rest of a round."""

    target: PassCosts
    drafts: Mapping[str, PassCosts] = field(default_factory=dict)
    other: float = 0.0
    draw: float = 0.0

    def prefill(self, tokens: int) -> float:
        """Seconds to read a prompt."""
        return self.target.per_prompt_token * tokens

    def reading(self, drafter: str, behind: int) -> float:
        """Seconds for a drafter to catch up."""
        costs = self.drafts.get(drafter)
        return costs.per_prompt_token * behind if costs and behind > CATCH_UP_ROWS else 0.0

    def steps(self, drafter: str, steps: int, entries: int, behind: int = 1) -> float:
        """Seconds of so many drafting steps; the first takes the few tokens along that the drafter is behind."""
        if drafter not in self.drafts or not steps:
            return 0.0
        costs, first = self.drafts[drafter], behind if behind <= CATCH_UP_ROWS else 1
        return costs.of(first, entries) + costs.of(1, entries) * (steps - 1) + self.draw * steps


@dataclass(frozen=True)
class SimulatedRun:
    """One answer. Seconds: the whole request, and until its first token."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float
    first: float
    nodes: list[int]  # allowed in each round

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.rounds


def simulate(
    drafts: Mapping[str, Draft],
    truth: Truth,
    tokens: int,
    *,
    controller: Controller | None = None,
    gamma: int = 16,
    drafter: str | None = None,
    prompt: int = 1,
    known: int = 0,
    limit: int | None = None,
    number: int = 0,
    noise: Callable[[], float] = lambda: 1.0,
) -> SimulatedRun:
    """Decode an answer of ``tokens`` tokens behind a prompt of ``prompt``, with ``gamma`` nodes a round, or as many
    of these as ``controller`` decides. ``known``: tokens of the prompt that nobody needs to read any more. ``limit``:
    tokens the answer was allowed. ``number``: the session's. ``noise``: a factor for the seconds of each part of a
    round."""
    most = tokens if limit is None else limit
    nobody: Any = None  # a simulated session has no logits, random draws or rule
    session = Session(
        id=number,
        request=Request(prompt, prompt + most),
        tokens=[0] * prompt,
        pipeline=nobody,
        rng=nobody,
        draft=Drafting(
            gamma,
            adaptive=controller is not None,
            drafters={name: cast(Drafter, draft) for name, draft in drafts.items()},  # only for their forecasts
            drafter_name=drafter or next(iter(drafts), ""),
            cached=dict.fromkeys(drafts, known),
        ),
    )
    report, read = session.report, dict.fromkeys(drafts, known)
    report.seconds_prefill = seconds = truth.prefill(prompt - known)
    first, nodes = 0.0, []
    while report.emitted < tokens:
        position, text = report.emitted, len(session.tokens)
        allowed = max(0, min(gamma, session.request.limit - text - 1))
        if controller is not None:
            [allowed] = controller.budgets([session], [allowed])
        name = session.draft.drafter_name
        made, accepted = drafts[name](position, allowed) if allowed else (0, 0)
        drafting = reading = 0.0
        if allowed:
            reading = truth.reading(name, text - read[name]) * noise()
            drafting = truth.steps(name, made, text, text - read[name]) * noise()
            read[name] = text + min(accepted, max(made - 1, 0))  # nobody has read the last node
        report.seconds_draft_prefill += reading
        target = truth.target.of(1 + made, text - 1) * noise()
        taken = min(accepted + 1, tokens - report.emitted)
        session.tokens += [0] * taken
        report.emitted += taken
        report.target_passes += 1
        report.drafted += made
        report.accepted += min(accepted, taken)
        seconds += reading + drafting + target + truth.other
        first = first or seconds
        nodes.append(allowed)
        if report.emitted >= tokens:
            session.finish = "length" if tokens == most else "stop"
        if controller is not None:
            verdict = Verdict(list(range(accepted)), 0, "correction" if accepted < made else "bonus")
            controller.observe(
                [session], [Proposal.chain([0] * made)], [verdict], RoundSeconds(drafting, target, 0.0, truth.other)
            )
    return SimulatedRun(report.emitted, report.target_passes, report.drafted, report.accepted, seconds, first, nodes)
