"""Rules, coins and drafters that are wrong on purpose. A proof that does not catch them proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..core.protocols import Coins, Drafter, Session
from ..core.types import Forward, Key, Law, Proposal, Verdict
from ..verify import ratio

AcceptProb = Callable[[Law, Law, int], float]
"""Probability of accepting a drafted token: (target law, draft law, token)."""
Residual = Callable[[Law, Law], Law]
"""What the next sibling, or the correction, is taken from: (target law, draft law)."""


@dataclass(frozen=True)
class RatioLike:
    """The shape of speculative sampling on chains, with its two formulas left open."""

    accept_prob: AcceptProb
    residual: Residual = ratio.residual
    LOSSLESS: bool = True  # what it claims
    TREES: bool = False
    NEEDS_LAWS: bool = True

    def draw(self, law: Law, coins: Coins, base: int, node: int, depth: int) -> int:
        return ratio.draw(law, coins, base, node, depth)

    def verify(self, proposal: Proposal, laws: Sequence[Law], coins: Coins, base: int) -> Verdict:
        for node, token in enumerate(proposal.tokens):
            target, draft = laws[node], proposal.law(node)
            if not coins.bernoulli(Key(base, node, "accept"), min(1.0, self.accept_prob(target, draft, token))):
                left = self.residual(target, draft)
                return Verdict(list(range(node)), coins.categorical(Key(base, node, "next"), left), "correction")
        end = len(proposal)
        return Verdict(list(range(end)), coins.categorical(Key(base, end, "next"), laws[end]), "bonus")


def _ratio(target: Law, draft: Law, token: int) -> float:
    return target.prob(token) / draft.prob(token)


def _inverse(target: Law, draft: Law, token: int) -> float:
    return draft.prob(token) / target.prob(token) if target.prob(token) > 0 else 1.0


def _other_token(target: Law, draft: Law, token: int) -> float:
    other = draft.token((int(torch.argmax(draft.probs)) + 1) % draft.probs.numel())
    return target.prob(token) / draft.prob(other) if draft.prob(other) > 0 else 1.0


RULES: dict[str, RatioLike] = {
    "resample from the target": RatioLike(_ratio, residual=lambda target, draft: target),
    "draft probability of another token": RatioLike(_other_token),
    "inverse ratio": RatioLike(_inverse),
}
"""Wrong acceptance rules by what is wrong with them."""
RIGHT = RatioLike(_ratio)
"""Their right twin: the same code with the right formulas."""


class Block:
    """Block verification (Sun et al., arXiv 2403.10444, algorithm 2), a right rule that looks ahead: later
    drafts and coins decide about earlier tokens, and may be discarded all the same. It is here because
    only such a rule tells coins keyed by position from coins keyed by round."""

    LOSSLESS, TREES, NEEDS_LAWS = True, False, True

    def draw(self, law: Law, coins: Coins, base: int, node: int, depth: int) -> int:
        return ratio.draw(law, coins, base, node, depth)

    def verify(self, proposal: Proposal, laws: Sequence[Law], coins: Coins, base: int) -> Verdict:
        gamma, joint, length, weight = len(proposal), 1.0, 0, 1.0
        for i in range(gamma + 1):  # joint: the p_i of the paper, after i drafted tokens
            if i > 0:
                token = proposal.tokens[i - 1]
                joint = min(1.0, joint * laws[i - 1].prob(token) / proposal.law(i - 1).prob(token))
                if i == gamma:
                    accept = joint
                else:
                    left = float(_block_residual(laws[i], proposal.law(i), joint).sum())
                    accept = left / (left + 1 - joint) if left + 1 - joint > 0 else 1.0
                if coins.bernoulli(Key(base, i - 1, "accept"), accept):
                    length, weight = i, joint
        law = laws[length]
        if length < gamma:
            left_over = _block_residual(law, proposal.law(length), weight)
            if float(left_over.sum()) > 0:
                law = Law(left_over / left_over.sum(), law.ids)
        token = coins.categorical(Key(base, length, "next"), law)
        return Verdict(list(range(length)), token, "correction" if length < gamma else "bonus")


def _block_residual(target: Law, draft: Law, weight: float) -> torch.Tensor:
    return torch.clamp(weight * target.probs.double() - draft.on(target), min=0.0)


@dataclass(frozen=True)
class PositionCoins:
    """Keys its coins by the position of the token instead of by round: a later round meets the coins again
    that an earlier one has looked at and discarded."""

    coins: Coins

    def bernoulli(self, key: Key, prob: float) -> bool:
        return self.coins.bernoulli(_by_position(key), prob)

    def categorical(self, key: Key, law: Law) -> int:
        return self.coins.categorical(_by_position(key), law)

    def gumbel_argmax(self, position: int, law: Law) -> int:
        return self.coins.gumbel_argmax(position, law)


def _by_position(key: Key) -> Key:
    return Key(key.base + key.node, 0, key.use)


@dataclass(frozen=True)
class Dropping:
    """Drops drawn tokens after having seen them: the chain is cut before its first token with an odd id."""

    drafter: Drafter
    needs: Sequence[str] = ()

    def begin(self, session: Session) -> None:
        self.drafter.begin(session)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        return [_cut(proposal) for proposal in self.drafter.propose(sessions, budgets)]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        self.drafter.observe(sessions, verdicts, seen)

    def end(self, session: Session) -> None:
        self.drafter.end(session)


def _cut(proposal: Proposal) -> Proposal:
    size = next((i for i, token in enumerate(proposal.tokens) if token % 2), len(proposal))
    laws = proposal.draft_laws
    return Proposal.chain(proposal.tokens[:size], laws[:size] if laws is not None else None)
