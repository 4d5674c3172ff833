"""Typical acceptance: a draft token is accepted where the target finds it plausible (Cai et al., arXiv 2401.10774,
section 2.3.1).

A token is accepted if its probability exceeds min(epsilon, delta exp(-H)), where H is the entropy of the target's
distribution there in nats. Of the accepted paths the longest is taken. LOSSY: the output does not follow the target's
distribution above temperature 0. At temperature 0 it does: a distribution of one token accepts no other. Only for those
who ask for it by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.errors import ParameterError
from ..core.protocols import RandomSource, Rule
from ..core.types import Distribution, Key, Proposal, Verdict


@dataclass(frozen=True)
class Config:
    """The defaults are the paper's: delta is the root of epsilon."""

    epsilon: float = 0.09  # the threshold where the target is sure
    delta: float = 0.3  # times exp(-H): the threshold where it is not

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if not 0 < value <= 1:
                raise ParameterError(f"typical's {name} must lie in (0, 1], not {value}")


def draw(distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
    """A draft token: the draft's most probable one, which is the likeliest to be plausible."""
    return distribution.token(int(np.argmax(distribution.scores)))


def plausible(distribution: Distribution, token: int, config: Config) -> bool:
    """Whether the target finds the token plausible."""
    probs = distribution.probs[distribution.probs > 0].astype(np.float64)
    entropy = -float((probs * np.log(probs)).sum())
    return distribution.prob(token) > min(config.epsilon, config.delta * math.exp(-entropy))


@dataclass(frozen=True)
class Typical:
    """The rule with these thresholds."""

    config: Config
    LOSSLESS: ClassVar[bool] = False
    TREES: ClassVar[bool] = True
    NEEDS_DISTRIBUTIONS: ClassVar[bool] = False
    SHARED_NOISE: ClassVar[bool] = False
    draw = staticmethod(draw)

    def verify(
        self, proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int
    ) -> Verdict:
        """Take the longest accepted path, the first of equals, and add one token drawn from the target's
        distribution."""
        depth, last = {-1: 0}, -1
        for node, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
            if parent in depth and plausible(distributions[parent + 1], token, self.config):
                depth[node] = depth[parent] + 1
                last = node if depth[node] > depth[last] else last
        token = rng.categorical(Key(base, last, "next"), distributions[last + 1])
        return Verdict(proposal.path(last), token, "correction" if proposal.children(last) else "bonus")


def create(config: Config) -> Rule:
    return Typical(config)
