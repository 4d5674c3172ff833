"""What rounds cost as they run: corrects the measured curves by the clock of every round."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from statistics import median

from ..core.protocols import Session
from ..core.types import Proposal, RoundSeconds, Verdict
from .costs import PassCosts

_NOISE = 0.01  # variance of one round's log time
_DRIFT = 2e-4  # variance that a round adds to what is not looked at
_UNSURE = 0.02  # variance of a curve measured at load: it may be off by a seventh
_SHARED = 0.6  # how much of a surprise is the machine's, and so concerns every kind of work
_READS = 32  # tokens from which on a drafter's catching up counts: it is a pass of its own, or several
_NEIGHBOURS, _BESIDE = 4, 5.0  # one-row passes that a pass over more rows is compared with, from so many seconds
_PAIRS, _CURVE = 128, 5  # pairs that are remembered; pairs that a curve measured at load counts for
_MOST = 0.5  # no single round says more than this: something else ran


class Drift:
    """Factors between the time that work takes and the time it was measured to take.

    Each kind of work has its own (a Kalman filter of the logarithm); what surprises in one kind moves the others
    too, because it is mostly the machine that has become slower or faster.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, float, int]] = {}  # log factor, its variance, round it holds for
        self._all, self._round = 0.0, 0

    @property
    def common(self) -> float:
        """The part that is the machine's, the same for every kind of work."""
        return math.exp(self._all)

    def factor(self, kind: Hashable) -> float:
        """By what the measured time of this kind of work must be multiplied now."""
        return math.exp(self._all + (self._known[kind][0] if kind in self._known else 0.0))

    def observe(self, kind: Hashable, seconds: float, expected: float) -> None:
        """One piece of work took ``seconds``, where the curve measured at load has ``expected``."""
        self._round += 1
        own, variance, when = self._known.get(kind, (0.0, _UNSURE, self._round))
        variance += _DRIFT * (self._round - when)
        gain = variance / (variance + _NOISE)
        surprise = math.log(max(seconds, 1e-9) / max(expected, 1e-9)) - self._all - own
        move = gain * min(max(surprise, -_MOST), _MOST)
        self._all += _SHARED * move
        self._known[kind] = own + (1 - _SHARED) * move, (1 - gain) * variance, self._round


class RowRatios:
    """By what v(rows) in the rounds of the last minutes is another than the measured curve's.

    A pass over more rows is paired with those over one row just before it, so that a machine that has become slower or
    faster meets both; the median of the last pairs counts, and the curve's own value as some pairs more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ones: deque[tuple[float, float]] = deque(maxlen=_NEIGHBOURS)  # when, log of seconds / expected seconds
        self._pairs: dict[int, deque[float]] = {}  # by size

    def observe(self, rows: int, seconds: float, expected: float) -> None:
        """A pass over ``rows`` rows took ``seconds``, where the curve has ``expected``."""
        now, surprise = self._clock(), math.log(max(seconds, 1e-9) / max(expected, 1e-9))
        if rows == 1:
            self._ones.append((now, surprise))
            return
        beside = [one for when, one in self._ones if now - when < _BESIDE]
        if beside:
            pairs = self._pairs.setdefault(_size(rows), deque(maxlen=_PAIRS))
            pairs.append(surprise - median(beside))

    def factors(self) -> dict[int, float]:
        """Factors of v(rows) by the size of a pass, 1 for those that are not in it."""
        return {size: math.exp(median([*pairs, *[0.0] * _CURVE])) for size, pairs in self._pairs.items()}


class Line:
    """Seconds as ``first + step * x``, learnt by least squares that forget, from a guess that counts as a few
    observations (so that observations at one ``x`` do not leave the other parameter open)."""

    def __init__(self, first: float, step: float, *, weight: float = 1.0, keep: float = 0.97) -> None:
        self._guess, self._weight, self._keep = (first, step), weight, keep
        self._sums = [0.0] * 5  # n, x, x x, y, x y
        self.first, self.step = first, step

    def at(self, x: float) -> float:
        """Seconds at ``x``."""
        return self.first + self.step * x

    def observe(self, x: float, seconds: float) -> None:
        """Work of size ``x`` took ``seconds``."""
        if self._sums[0] > 3:
            seconds = min(seconds, 3 * self.at(x))
        for i, value in enumerate((1.0, x, x * x, seconds, x * seconds)):
            self._sums[i] = self._sums[i] * self._keep + value
        n, sx, sxx, sy, sxy = self._sums
        first, step = self._guess
        for guessed in (0.0, 4.0):  # the guess as two observations
            w, y = self._weight, first + step * guessed
            n, sx, sxx, sy, sxy = n + w, sx + w * guessed, sxx + w * guessed**2, sy + w * y, sxy + w * guessed * y
        self.step = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        self.first = (sy - self.step * sx) / n
        if self.step < 0:
            self.first, self.step = sy / n, 0.0
        elif self.first < 0:
            self.first, self.step = 0.0, sxy / sxx


class CostModel:
    """What a round costs now: curves measured at load, corrected by the clock of every round since.

    ``drafts``: the costs of the models behind drafters, by the drafter's name; what other drafters cost is learnt
    as they run. Drafting is priced by its steps: a step in which several sessions take part counts as a pass
    of the draft over so many rows / over one.
    """

    def __init__(self, target: PassCosts, drafts: Mapping[str, PassCosts]) -> None:
        self._target, self._drafts = target, drafts
        self._drift, self._ratios = Drift(), RowRatios()
        self._lines: dict[str, Line] = {}
        self._reading = {name: costs.per_prompt_token for name, costs in drafts.items()}
        self._sample, self._other = 0.0, 0.0  # per token that comes out, per round
        self.observed: float | None = None  # Unix time of the last round that was looked at

    def line(self, drafter: str) -> Line:
        """Seconds of drafting by its steps, at the machine's usual speed."""
        if drafter not in self._lines:
            known = self._drafts.get(drafter)
            step, weight = (known.of(1), 2.0) if known else (0.02 * self._target.of(1), 0.5)
            self._lines[drafter] = Line(0.0, step, weight=weight)
        return self._lines[drafter]

    def step(self, drafter: str, sessions: int) -> float:
        """A step of drafting for ``sessions`` sessions / for one."""
        return self._drafts.get(drafter, self._target).relative(sessions) if sessions else 0.0

    def attention(self, entries: int) -> tuple[float, float]:
        """Seconds that a sequence's cached entries add to a pass: with one row, and for each further row."""
        return self._target.attention(1, entries), entries * self._target.per_entry_row

    def target(self, rows: float, attention: float) -> float:
        """Seconds of a pass over ``rows`` rows, where attending to what is cached costs ``attention``."""
        return max(1e-9, self._target.base(rows) + attention) * self._drift.factor(_size(rows))

    @property
    def plain(self) -> float:
        """Seconds of a token of one request that is decoded plainly and alone, behind a text of usual length."""
        return self.target(1, self.attention(self._target.cached)[0]) + self.rest(1)

    def pass_seconds(self) -> Callable[[float, int], float]:
        """Seconds of a target pass over rows of one sequence behind cached entries, at the speed of the measured curve,
        with the v(rows) that is known now."""
        return partial(_pass_seconds, self._target, self._ratios.factors())

    def drafting(self, drafter: str, steps: float) -> float:
        """Seconds of drafting ``steps`` steps."""
        return self.line(drafter).at(steps) * self._drift.common if steps else 0.0

    def reading(self, drafter: str, tokens: int) -> float:
        """Seconds until a drafter that is ``tokens`` tokens behind the text has caught up; a few cost nothing, since
        the first drafting step takes them along."""
        if tokens < _READS:
            return 0.0
        return self._reading.get(drafter, 0.0) * tokens * self._drift.common

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
            self._drift.observe(_size(rows), seconds.target, expected)
            self._ratios.observe(rows, seconds.target, expected)
        if len(steps) == 1:  # of several drafters' time in one round, nobody knows the parts
            [(name, size)] = steps.items()
            self.line(name).observe(size, seconds.draft / self._drift.common)
        first = self._sample == self._other == 0.0
        gain = 1.0 if first else 0.05
        self._sample += gain * (min(seconds.sample, seconds.target) / tokens - self._sample)
        self._other += gain * (min(seconds.other, seconds.target) - self._other)

    def observe_reading(self, drafter: str, tokens: int, seconds: float) -> None:
        """A drafter caught up with ``tokens`` tokens in ``seconds``. Of a few tokens nothing is learnt: what seems
        to be the time of reading them is that of leaving them to the first drafting step."""
        each, known = seconds / tokens / self._drift.common, self._reading.get(drafter)
        if known is None:
            self._reading[drafter] = each
        elif tokens >= _READS:
            self._reading[drafter] = known + min(1.0, tokens / 64) * (each - known)


class Watch:
    """The Controller of an engine in which nothing is to be decided: it learns what passes cost from every round,
    once it has ``prices`` to correct."""

    def __init__(self) -> None:
        self.cost_model: CostModel | None = None

    def budgets(self, sessions: Sequence[Session], most: Sequence[int]) -> list[int]:
        """As many nodes as are allowed."""
        return list(most)

    def observe(
        self,
        sessions: Sequence[Session],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict],
        seconds: RoundSeconds,
    ) -> None:
        """Learn from a round."""
        if self.cost_model is None:
            return
        attention = 0.0
        for session, proposal, verdict in zip(sessions, proposals, verdicts, strict=True):
            first, more = self.cost_model.attention(len(session.tokens) - len(verdict.path) - 2)
            attention += first + more * len(proposal)
        rows = sum(len(proposal) + 1 for proposal in proposals)
        self.cost_model.observe(rows, attention, {}, sum(len(verdict.path) + 1 for verdict in verdicts), seconds)


def _pass_seconds(costs: PassCosts, factors: Mapping[int, float], rows: float, entries: int) -> float:
    return costs.of(rows, entries) * factors.get(_size(rows), 1.0)


def _size(rows: float) -> int:
    """Sizes of a pass that are corrected together: 1, 2, 3 to 4, 5 to 8, ... rows."""
    return (math.ceil(rows) - 1).bit_length()
