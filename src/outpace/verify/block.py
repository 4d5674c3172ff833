"""Block verification: a chain is judged as a whole (Sun et al., arXiv 2403.10444, algorithm 2).

Let w_i be the running product min(1, w_{i-1} p_i / q_i). The first i drafted tokens can stand with probability
s_i / (s_i + 1 - w_i), where s_i is the mass of max(w_i p - q, 0) at the next place; the last with w itself. The
longest stretch that any of these random draws lets stand is accepted, and the correction comes from its residual. In
expectation no valid rule accepts more (theorem 2), ``ratio`` included. A later draft can so save an earlier one:
random draws are looked at and then discarded, which is why they are keyed by round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.protocols import RandomSource
from ..core.types import Array, Distribution, Key, Proposal, Verdict

LOSSLESS = True
TREES = False
NEEDS_DISTRIBUTIONS = True


def draw(distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
    """A draft token, drawn from the draft's distribution with a random draw of this round."""
    return rng.categorical(Key(base, node, "draft"), distribution)


def residual(target: Distribution, draft: Distribution, weight: float) -> Array:
    """max(w p - q, 0) on the target's support, not normalised: ``[s]``."""
    return np.maximum(weight * target.probs - draft.on(target), 0)


def chances(proposal: Proposal, distributions: Sequence[Distribution]) -> Iterator[tuple[float, float]]:
    """For each drafted token w, and the chance that its random draw lets the stretch up to it stand; as far as w is
    not 0."""
    joint = 1.0
    for node, token in enumerate(proposal.tokens):
        joint = min(1.0, joint * distributions[node].prob(token) / proposal.distribution(node).prob(token))
        if joint == 0.0:  # nor does anything behind it stand: its rows need no distribution
            return
        accept = joint
        if node + 1 < len(proposal):
            left = float(residual(distributions[node + 1], proposal.distribution(node + 1), joint).sum())
            accept = left / (left + 1 - joint) if left + 1 > joint else 1.0
        yield joint, accept


def verify(proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int) -> Verdict:
    """Find the longest stretch of the chain that stands, and add one token of the target's."""
    gamma = len(proposal)
    length, weight = 0, 1.0  # of the longest stretch so far, and its w
    for node, (joint, accept) in enumerate(chances(proposal, distributions)):
        if rng.bernoulli(Key(base, node, "accept"), accept):
            length, weight = node + 1, joint
    distribution = distributions[length]
    if length < gamma:
        rest = residual(distribution, proposal.distribution(length), weight)
        total = float(rest.sum())
        if total > 0:  # where rounding leaves nothing of it, a refusal had no mass
            distribution = Distribution(rest / total, distribution.ids)
    token = rng.categorical(Key(base, length - 1, "next"), distribution)
    return Verdict(list(range(length)), token, "correction" if length < gamma else "bonus")
