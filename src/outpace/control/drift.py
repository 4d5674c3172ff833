"""Corrections of measured costs by the clock of every round: how fast the machine is now, what more rows cost now."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from statistics import median

# Variances of the logarithm of a time. All of them were chosen by hand.
_NOISE = 0.01  # of one round's time: 10%
_DRIFT = 2e-4  # that a round adds to each kind of work that it does not show
_UNSURE = 0.02  # of a curve measured at load: it may be off by a seventh
_SHARED = 0.6  # part of a surprise that is the machine's, and so concerns every kind of work; chosen by hand
_LARGEST = 0.5  # of the surprises (log of seconds / expected) that count: beyond, something else ran; chosen by hand
_NEIGHBOURS = 4  # one-row passes that a pass over more rows is compared with; chosen by hand
_RECENT_SECONDS = 5.0  # a one-row pass that is older says nothing of the machine as it is now; chosen by hand
_PAIRS = 128  # pairs that are remembered for each size of a pass; chosen by hand
_CURVE_PAIRS = 5  # pairs that the curve measured at load counts for; chosen by hand


class SpeedDrift:
    """Factors between the seconds that work takes now and the seconds it was measured to take at load.

    Each kind of work has its own factor: a Kalman filter of its logarithm. A surprise in one kind of work moves the
    others too, because it is mostly the machine that has become slower or faster.
    """

    def __init__(self) -> None:
        self._own: dict[Hashable, tuple[float, float, int]] = {}  # log factor, its variance, round it holds for
        self._machine, self._round = 0.0, 0

    @property
    def machine(self) -> float:
        """The machine's factor, the same for every kind of work."""
        return math.exp(self._machine)

    def factor(self, kind: Hashable) -> float:
        """By what the measured seconds of this kind of work must be multiplied now."""
        return math.exp(self._machine + (self._own[kind][0] if kind in self._own else 0.0))

    def observe(self, kind: Hashable, seconds: float, expected: float) -> None:
        """One piece of work took ``seconds``, where the curve measured at load has ``expected``."""
        self._round += 1
        own, variance, when = self._own.get(kind, (0.0, _UNSURE, self._round))
        variance += _DRIFT * (self._round - when)
        gain = variance / (variance + _NOISE)
        surprise = math.log(max(seconds, 1e-9) / max(expected, 1e-9)) - self._machine - own
        move = gain * min(max(surprise, -_LARGEST), _LARGEST)
        self._machine += _SHARED * move
        self._own[kind] = own + (1 - _SHARED) * move, (1 - gain) * variance, self._round


class RowCostCorrection:
    """Factors between v(rows), a pass over ``rows`` rows / over one, in the rounds of the last minutes and v(rows) of
    the curve measured at load.

    A pass over more rows is paired with the one-row passes just before it, so that a machine that has become slower or
    faster meets both. The median of the last pairs counts, and the curve's own value as some pairs more.
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
        recent = [one for when, one in self._ones if now - when < _RECENT_SECONDS]
        if recent:
            pairs = self._pairs.setdefault(size_class(rows), deque(maxlen=_PAIRS))
            pairs.append(surprise - median(recent))

    def factors(self) -> dict[int, float]:
        """Factors of v(rows) by the size class of a pass, 1 for those that are not in it."""
        return {size: math.exp(median([*pairs, *[0.0] * _CURVE_PAIRS])) for size, pairs in self._pairs.items()}


class LinearFit:
    """Seconds as ``first + step * x``, by least squares that forget old observations.

    A prior counts as observations at x = 0 and x = 4 of ``weight`` each, so that observations at a single ``x`` do not
    leave the other parameter open. ``keep``: what an observation's weight is multiplied by with each later one.
    """

    def __init__(self, first: float, step: float, *, weight: float = 1.0, keep: float = 0.97) -> None:
        self._prior, self._weight, self._keep = (first, step), weight, keep
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
        first, step = self._prior
        for at in (0.0, 4.0):
            w, y = self._weight, first + step * at
            n, sx, sxx, sy, sxy = n + w, sx + w * at, sxx + w * at**2, sy + w * y, sxy + w * at * y
        self.step = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        self.first = (sy - self.step * sx) / n
        if self.step < 0:
            self.first, self.step = sy / n, 0.0
        elif self.first < 0:
            self.first, self.step = 0.0, sxy / sxx


def size_class(rows: float) -> int:
    """Passes that are corrected together: of 1, 2, 3 to 4, 5 to 8, ... rows."""
    return (math.ceil(rows) - 1).bit_length()
