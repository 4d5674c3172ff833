"""Speculative sampling: accept with min(1, p/q), else resample from the residual
(Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2).

For example, of the tokens a, b, c, d the target's distribution is p = (0.1, 0.3, 0.4, 0.2), the draft's
q = (0.4, 0.3, 0.2, 0.1). A drafted b, c or d is accepted, since p >= q there. A drafted a is accepted with probability
0.1 / 0.4 = 0.25. If it is rejected, the token is drawn from the residual norm(max(p - q, 0)) = (0, 0, 2/3, 1/3). So c
comes out with probability 0.2 (drafted) + 0.4 * 0.75 * 2/3 (a rejected) = 0.4, which is p(c).

On trees it is recursive, sibling by sibling: after each rejection p becomes the residual norm(max(p - q, 0)), where q
is the distribution of that draw (Miao et al., arXiv 2305.09781, section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.protocols import RandomSource
from ..core.types import Distribution, Key, Proposal, Verdict

LOSSLESS = True
TREES = True
NEEDS_DISTRIBUTIONS = True
SHARED_NOISE = False


def draw(distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
    """A draft token, drawn from the draft's distribution with a random draw of this round."""
    return rng.categorical(Key(base, node, "draft"), distribution)


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """norm(max(p - q, 0)). Distributions over p's support ``[s]``, in p's dtype. Where rounding leaves nothing of
    it, p itself: p <= q everywhere means p = q, so such a rejection is rounding."""
    left = np.maximum(target.probs - draft.on(target), 0)  # [s]
    total = float(left.sum())
    return Distribution(left / total, target.ids) if total > 0 else target


def verify(proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int) -> Verdict:
    """Test the children of the last accepted node in order; descend into the first one accepted."""
    path: list[int] = []
    node = -1
    while True:
        left = distributions[node + 1]  # p; after rejections, what is left of it
        children = proposal.children(node)
        for child in children:
            token, draft = proposal.tokens[child], proposal.distribution(child)
            if rng.bernoulli(Key(base, child, "accept"), min(1.0, left.prob(token) / draft.prob(token))):
                path.append(child)
                node = child
                break
            left = residual(left, draft)
        else:
            token = rng.categorical(Key(base, node, "next"), left)
            return Verdict(path, token, "correction" if children else "bonus")
