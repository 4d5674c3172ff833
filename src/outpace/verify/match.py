"""Accept while the draft's token is the target's (Daliri et al., arXiv 2408.07978, algorithm 1).

The target's token at each node is drawn by Gumbel-max with noise keyed by position and token id, and a
draft draws with the same noise. The output is plain sampling with the same seed, token for token, for
any drafter, tree, gamma or batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.protocols import RandomSource
from ..core.types import Distribution, Proposal, Verdict

LOSSLESS = True
TREES = True
NEEDS_DISTRIBUTIONS = False
SHARED_NOISE = True  # a draft that chooses its tokens does better when it looks at the noise of their position


def draw(distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
    """A draft token: the draft's own Gumbel-max choice under the noise of its position."""
    return rng.gumbel_argmax(base + depth, distribution)


def verify(proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int) -> Verdict:
    """Walk down from the pending token as long as a child carries the token that the target draws."""
    path: list[int] = []
    node = -1
    while True:
        token = rng.gumbel_argmax(base + len(path), distributions[node + 1])
        children = proposal.children(node)
        equal = next((child for child in children if proposal.tokens[child] == token), None)
        if equal is None:
            return Verdict(path, token, "correction" if children else "bonus")
        path.append(equal)
        node = equal
