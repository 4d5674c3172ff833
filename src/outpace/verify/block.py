"""Block verification: a chain is judged as a whole (Sun et al., arXiv 2403.10444, algorithm 2).

Let w_i be the running product min(1, w_{i-1} p_i / q_i). One random draw for each i accepts the first i drafted tokens
with probability s_i / (s_i + 1 - w_i), where s_i is the mass of max(w_i p - q, 0) at the next place; the whole chain
with w itself. The longest stretch that a draw accepts is accepted. The correction is drawn from its residual,
norm(max(w_i p - q, 0)). In expectation no valid rule accepts more (theorem 2), ``ratio`` included. A later draft can so
save an earlier one. Random draws are looked at and then discarded, which is why they are keyed by round.

For example, the tokens are a and b, and the chain a, b is drafted. At the first place p = (0.2, 0.8), q = (0.5, 0.5):
w_1 = 0.2 / 0.5 = 0.4. At the second p = (0.1, 0.9), q = (0.7, 0.3): w_2 = min(1, 0.4 * 0.9 / 0.3) = 1, so the whole
chain is accepted; ``ratio`` would accept its a with probability 0.4 only. Had a, a been drafted, w_2 would be
0.4 * 0.1 / 0.7 = 0.057, the probability of accepting both. The first a alone is accepted with s_1 = 0.4 * 0.9 - 0.3 =
0.06, 0.06 / (0.06 + 1 - 0.4) = 0.091, and is then followed by b. Over both, a drafted a is accepted with
0.3 * 1 + 0.7 * (1 - 0.943 * 0.909) = 0.4: as often as under ``ratio``, but with more behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.protocols import RandomSource
from ..core.types import Array, Distribution, Key, Proposal, Verdict

LOSSLESS = True
TREES = False
NEEDS_DISTRIBUTIONS = True
SHARED_NOISE = False


def draw(distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
    """A draft token, drawn from the draft's distribution with a random draw of this round."""
    return rng.categorical(Key(base, node, "draft"), distribution)


def residual(target: Distribution, draft: Distribution, weight: float) -> Array:
    """max(w p - q, 0) on the target's support, not normalised: ``[s]``."""
    return np.maximum(weight * target.probs - draft.on(target), 0)


def chances(proposal: Proposal, distributions: Sequence[Distribution]) -> Iterator[tuple[float, float]]:
    """For each drafted token w, and the probability that its random draw accepts the stretch up to it; until w is 0."""
    joint = 1.0
    for node, token in enumerate(proposal.tokens):
        joint = min(1.0, joint * distributions[node].prob(token) / proposal.distribution(node).prob(token))
        if joint == 0.0:  # nothing behind it is accepted: its rows need no distribution
            return
        accept = joint
        if node + 1 < len(proposal):
            left = float(residual(distributions[node + 1], proposal.distribution(node + 1), joint).sum())
            accept = left / (left + 1 - joint) if left + 1 > joint else 1.0
        yield joint, accept


def verify(proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int) -> Verdict:
    """Find the longest stretch of the chain that is accepted, and add one token of the target's."""
    gamma = len(proposal)
    length, weight = 0, 1.0  # of the longest stretch so far, and its w
    for node, (joint, accept) in enumerate(chances(proposal, distributions)):
        if rng.bernoulli(Key(base, node, "accept"), accept):
            length, weight = node + 1, joint
    distribution = distributions[length]
    if length < gamma:
        rest = residual(distribution, proposal.distribution(length), weight)
        total = float(rest.sum())
        if total > 0:  # where rounding leaves nothing of it, a rejection had no mass
            distribution = Distribution(rest / total, distribution.ids)
    token = rng.categorical(Key(base, length - 1, "next"), distribution)
    return Verdict(list(range(length)), token, "correction" if length < gamma else "bonus")
