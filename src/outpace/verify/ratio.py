"""Speculative sampling: accept with min(1, p/q), else resample from the residual
(Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2).

On trees in its recursive form, sibling by sibling: after each refusal p becomes the residual
norm(max(p - q, 0)), where q is the law of that draw (Miao et al., arXiv 2305.09781, section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.protocols import Coins
from ..core.types import Key, Law, Proposal, Verdict

LOSSLESS = True
TREES = True
NEEDS_LAWS = True


def draw(law: Law, coins: Coins, base: int, node: int, depth: int) -> int:
    """A draft token, drawn from the draft's law with a coin of this round."""
    return coins.categorical(Key(base, node, "draft"), law)


def residual(target: Law, draft: Law) -> Law:
    """norm(max(p - q, 0)). Where rounding leaves nothing of it, p itself: a refusal then had no mass."""
    left = torch.clamp(target.probs - draft.on(target), min=0.0)  # [s]
    total = float(left.sum())
    return Law(left / total, target.ids) if total > 0 else target


def verify(proposal: Proposal, laws: Sequence[Law], coins: Coins, base: int) -> Verdict:
    """Test the children of the last accepted node in order; descend into the first one accepted."""
    path: list[int] = []
    node = -1
    while True:
        target = laws[node + 1]
        children = proposal.children(node)
        for child in children:
            token, draft = proposal.tokens[child], proposal.law(child)
            if coins.bernoulli(Key(base, child, "accept"), min(1.0, target.prob(token) / draft.prob(token))):
                path.append(child)
                node = child
                break
            target = residual(target, draft)
        else:
            token = coins.categorical(Key(base, node, "next"), target)
            return Verdict(path, token, "correction" if children else "bonus")
