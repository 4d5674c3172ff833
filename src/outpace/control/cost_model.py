"""What a round costs now: curves measured at load, corrected by the clock of every round since."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from ..core.types import RoundSeconds
from .drift import LinearFit, RowCostCorrection, SpeedDrift, size_class
from .pass_costs import PassCosts

# Tokens from which on a drafter's catching up counts: it is a pass of its own, or several. From fewer nothing is
# learnt: their seconds were those of finding out that nothing was to do (docs/log.md, 2026-11-30, replays).
_CATCH_UP_TOKENS = 32
_SURE_TOKENS = 64  # of a catching up whose seconds replace what was known of it altogether; chosen by hand
_GAIN = 0.05  # of a round, in the seconds of sampling and of the rest; chosen by hand
_STEP_SHARE = 0.02  # of a one-row pass: a drafting step of a drafter without a model, before any was seen


class CostModel:
    """What a round costs now.

    ``drafts``: the costs of the models behind drafters, by the drafter's name; what other drafters cost is learnt
    as they run. Drafting is priced by its steps: a step in which several sessions take part counts as a pass
    of the draft over so many rows / over one.
    """

    def __init__(self, target: PassCosts, drafts: Mapping[str, PassCosts]) -> None:
        self._target, self._drafts = target, drafts
        self._drift, self._row_costs = SpeedDrift(), RowCostCorrection()
        self._fits: dict[str, LinearFit] = {}
        self._prefill = {name: costs.per_prompt_token for name, costs in drafts.items()}  # seconds a token
        self._sample, self._other = 0.0, 0.0  # seconds for each token that comes out, for each round
        self.observed: float | None = None  # Unix time of the last round that was looked at

    def drafting_fit(self, drafter: str) -> LinearFit:
        """Seconds of drafting by its steps, at the machine's usual speed."""
        if drafter not in self._fits:
            costs = self._drafts.get(drafter)
            step, weight = (costs.of(1), 2.0) if costs else (_STEP_SHARE * self._target.of(1), 0.5)
            self._fits[drafter] = LinearFit(0.0, step, weight=weight)
        return self._fits[drafter]

    def step(self, drafter: str, sessions: int) -> float:
        """A step of drafting for ``sessions`` sessions / for one."""
        return self._drafts.get(drafter, self._target).relative(sessions) if sessions else 0.0

    def attention(self, entries: int) -> tuple[float, float]:
        """Seconds that a sequence's cached entries add to a pass: with one row, and for each further row."""
        return self._target.attention(1, entries), entries * self._target.per_entry_row

    def target(self, rows: float, attention: float) -> float:
        """Seconds of a pass over ``rows`` rows, where attending to what is cached costs ``attention``."""
        return max(1e-9, self._target.base(rows) + attention) * self._drift.factor(size_class(rows))

    @property
    def plain(self) -> float:
        """Seconds of a token of one request that is decoded plainly and alone, behind a text of usual length."""
        return self.target(1, self.attention(self._target.cached)[0]) + self.rest(1)

    def pass_seconds(self) -> Callable[[float, int], float]:
        """Seconds of a target pass over rows of one sequence behind cached entries, at the speed of the measured curve,
        with the v(rows) that is known now. Arithmetic: it runs no pass."""
        return partial(_pass_seconds, self._target, self._row_costs.factors())

    def drafting(self, drafter: str, steps: float) -> float:
        """Seconds of drafting ``steps`` steps."""
        return self.drafting_fit(drafter).at(steps) * self._drift.machine if steps else 0.0

    def prefill(self, drafter: str, tokens: int) -> float:
        """Seconds until a drafter that is ``tokens`` tokens behind the text has caught up; a few cost nothing, since
        the first drafting step takes them along."""
        if tokens < _CATCH_UP_TOKENS:
            return 0.0
        return self._prefill.get(drafter, 0.0) * tokens * self._drift.machine

    def rest(self, tokens: float) -> float:
        """Seconds of sampling ``tokens`` tokens and of all that a round does besides passes."""
        return self._sample * tokens + self._other

    def observe(
        self, rows: int, attention: float, steps: Mapping[str, float], tokens: int, seconds: RoundSeconds
    ) -> None:
        """A round over ``rows`` rows; ``steps`` of drafting by drafter; ``tokens`` came out."""
        if not seconds.prompt_rows:
            self.observed = time.time()
            expected = max(1e-9, self._target.base(rows) + attention)
            self._drift.observe(size_class(rows), seconds.target, expected)
            self._row_costs.observe(rows, seconds.target, expected)
        if len(steps) == 1:  # of several drafters' time in one round, nobody knows the parts
            [(name, size)] = steps.items()
            self.drafting_fit(name).observe(size, seconds.draft / self._drift.machine)
        first = self._sample == self._other == 0.0
        gain = 1.0 if first else _GAIN
        self._sample += gain * (min(seconds.sample, seconds.target) / tokens - self._sample)
        self._other += gain * (min(seconds.other, seconds.target) - self._other)

    def observe_prefill(self, drafter: str, tokens: int, seconds: float) -> None:
        """A drafter caught up with ``tokens`` tokens in ``seconds``."""
        each, known = seconds / tokens / self._drift.machine, self._prefill.get(drafter)
        if known is None:
            self._prefill[drafter] = each
        elif tokens >= _CATCH_UP_TOKENS:
            self._prefill[drafter] = known + min(1.0, tokens / _SURE_TOKENS) * (each - known)


def _pass_seconds(costs: PassCosts, factors: Mapping[int, float], rows: float, entries: int) -> float:
    return costs.of(rows, entries) * factors.get(size_class(rows), 1.0)
