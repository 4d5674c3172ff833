"""Typical acceptance: a draft stands where the target finds it plausible (Cai et al., arXiv 2401.10774, section 2.3.1).

A token stands if its probability exceeds min(epsilon, delta exp(-H)), where H is the entropy of the target's
distribution there; of the paths that stand the longest is taken. LOSSY: the output does not follow the target's
distribution above temperature 0 (at 0 it does: a distribution of one token lets nothing else pass). Only for those who
ask for it by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.protocols import RandomSource
from ..core.types import Distribution, Key, Proposal, Verdict

LOSSLESS = False
TREES = True
NEEDS_DISTRIBUTIONS = False
EPSILON, DELTA = 0.09, 0.3  # the paper's: delta is the root of epsilon


def draw(distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
    """A draft token: the draft's most probable one, which is the likeliest to be plausible."""
    return distribution.token(int(np.argmax(distribution.scores)))


def stands(distribution: Distribution, token: int) -> bool:
    """Whether the target finds the token plausible."""
    probs = distribution.probs[distribution.probs > 0].astype(np.float64)
    entropy = -float((probs * np.log(probs)).sum())
    return distribution.prob(token) > min(EPSILON, DELTA * math.exp(-entropy))


def verify(proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int) -> Verdict:
    """Take the longest path that stands, the first of equals, and add one token drawn from the target's
    distribution."""
    depth, last = {-1: 0}, -1
    for node, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        if parent in depth and stands(distributions[parent + 1], token):
            depth[node] = depth[parent] + 1
            last = node if depth[node] > depth[last] else last
    token = rng.categorical(Key(base, last, "next"), distributions[last + 1])
    return Verdict(proposal.path(last), token, "correction" if proposal.children(last) else "bonus")
