"""Exact output distributions, by running the production code on every outcome of its random draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.protocols import LogitsPipeline, RandomSource
from ..core.types import Array, Distribution, Key
from .toy import LogitsOf

_SLIVER = 1e-15  # stretches narrower than this are rounding of the cuts, not outcomes


class EnumeratingRandomSource:
    """RandomSource that follow a script of branches and say how likely that script is.

    Every key stands for one uniform number in [0, 1). The outcomes so far confine it to an
    interval; a later question about the same key splits what is left. So code that asks the same random draw
    twice is modelled exactly as it would behave, and is found out if that bends its distribution.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self._interval: dict[Hashable, tuple[float, float]] = {}
        self.weight = 1.0
        self.choices: list[tuple[int, int]] = []  # at every branching: the branch taken, of how many

    def bernoulli(self, key: Key, prob: float) -> bool:
        return self._split(key, [0.0, min(max(prob, 0.0), 1.0), 1.0]) == 0

    def categorical(self, key: Key, distribution: Distribution) -> int:
        mass = np.cumsum(distribution.probs, dtype=np.float64)
        return distribution.token(self._split(key, [0.0, *(mass / mass[-1]).tolist()]))

    def gumbel_argmax(self, position: int, distribution: Distribution) -> int:
        if distribution.size == 1:
            return distribution.token(0)
        raise NotImplementedError("Gumbel noise is continuous: `match` is proved by token identity instead")

    def gumbel(self, position: int, ids: Array) -> Array:
        raise NotImplementedError("Gumbel noise is continuous: `match` is proved by token identity instead")

    def _split(self, key: Hashable, cuts: list[float]) -> int:
        low, high = self._interval.get(key, (0.0, 1.0))
        stretches = [(i, max(low, a), min(high, b)) for i, (a, b) in enumerate(pairwise(cuts))]
        stretches = [stretch for stretch in stretches if stretch[2] - stretch[1] > _SLIVER]
        branch = 0
        if len(stretches) > 1:
            depth = len(self.choices)
            branch = self._script[depth] if depth < len(self._script) else 0
            self.choices.append((branch, len(stretches)))
        index, a, b = stretches[branch]
        self.weight *= (b - a) / (high - low)
        self._interval[key] = (a, b)
        return index


def enumerate_distribution(run: Callable[[RandomSource], Hashable], most: int = 200_000) -> dict[Hashable, float]:
    """The exact distribution of what ``run`` returns, over all outcomes of its random draws (depth-first).
    Raises RuntimeError beyond ``most`` outcomes."""
    distribution: dict[Hashable, float] = defaultdict(float)
    script: list[int] = []
    for _ in range(most):
        rng = EnumeratingRandomSource(script)
        distribution[run(rng)] += rng.weight
        choices = rng.choices
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return dict(distribution)
        script = [branch for branch, _ in choices]
        script[-1] += 1
    raise RuntimeError(f"more than {most} outcomes: make the case smaller")


def plain_distribution(
    logits_of: LogitsOf, pipeline: LogitsPipeline, prompt: Sequence[int], count: int
) -> dict[tuple[int, ...], float]:
    """The distribution of the next ``count`` tokens under the target alone, multiplied out without a cache."""
    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, weight in distribution.items():
            prefix = (*prompt, *tokens)
            step = pipeline.distribution(np.asarray(logits_of(prefix), dtype=np.float64), prefix)
            for index, prob in enumerate(step.probs.tolist()):
                if prob > 0:
                    continued = (*tokens, step.token(index))
                    longer[continued] = weight * prob
        distribution = longer
    return distribution


def total_variation(one: Mapping[Any, float], other: Mapping[Any, float]) -> float:
    """Half the sum of absolute differences, in [0, 1]."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2
