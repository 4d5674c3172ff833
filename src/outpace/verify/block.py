"""Block verification: a chain is judged as a whole (Sun et al., arXiv 2403.10444, algorithm 2).

Let w_i be the running product min(1, w_{i-1} p_i / q_i). The first i drafted tokens can stand with probability
s_i / (s_i + 1 - w_i), where s_i is the mass of max(w_i p - q, 0) at the next place; the last with w itself. The
longest stretch that any of these coins lets stand is accepted, and the correction comes from its residual. In
expectation no valid rule accepts more (theorem 2), ``ratio`` included. A later draft can so save an earlier one:
coins are looked at and then discarded, which is why they are keyed by round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.protocols import Coins
from ..core.types import Key, Law, Proposal, Verdict

LOSSLESS = True
TREES = False
NEEDS_LAWS = True


def draw(law: Law, coins: Coins, base: int, node: int, depth: int) -> int:
    """A draft token, drawn from the draft's law with a coin of this round."""
    return coins.categorical(Key(base, node, "draft"), law)


def residual(target: Law, draft: Law, weight: float) -> Tensor:
    """max(w p - q, 0) on the target's support, not normalised: ``[s]``."""
    return torch.clamp(weight * target.probs - draft.on(target), min=0.0)


def chances(proposal: Proposal, laws: Sequence[Law]) -> Iterator[tuple[float, float]]:
    """For each drafted token w, and the chance that its coin lets the stretch up to it stand; as far as w is not 0."""
    joint = 1.0
    for node, token in enumerate(proposal.tokens):
        joint = min(1.0, joint * laws[node].prob(token) / proposal.law(node).prob(token))
        if joint == 0.0:  # nor does anything behind it stand: its rows need no law
            return
        accept = joint
        if node + 1 < len(proposal):
            left = float(residual(laws[node + 1], proposal.law(node + 1), joint).sum())
            accept = left / (left + 1 - joint) if left + 1 > joint else 1.0
        yield joint, accept


def verify(proposal: Proposal, laws: Sequence[Law], coins: Coins, base: int) -> Verdict:
    """Find the longest stretch of the chain that stands, and add one token of the target's."""
    gamma = len(proposal)
    length, weight = 0, 1.0  # of the longest stretch so far, and its w
    for node, (joint, accept) in enumerate(chances(proposal, laws)):
        if coins.bernoulli(Key(base, node, "accept"), accept):
            length, weight = node + 1, joint
    law = laws[length]
    if length < gamma:
        rest = residual(law, proposal.law(length), weight)
        total = float(rest.sum())
        if total > 0:  # where rounding leaves nothing of it, a refusal had no mass
            law = Law(rest / total, law.ids)
    token = coins.categorical(Key(base, length - 1, "next"), law)
    return Verdict(list(range(length)), token, "correction" if length < gamma else "bonus")
