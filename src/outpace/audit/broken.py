"""Rules, random sources, drafters and pipelines that are wrong on purpose. A proof that does not catch them proves
nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import numpy as np

from ..core.protocols import Drafter, LogitsPipeline, RandomSource, Rule, Session
from ..core.types import Array, Distribution, Forward, Key, Proposal, SamplingParams, Verdict
from ..sampling.pipeline import Pipeline
from ..verify import block, match, ratio

# ---- rules

AcceptProb = Callable[[Distribution, Distribution, int], float]
"""Probability of accepting a drafted token: (target distribution, draft distribution, token)."""
Residual = Callable[[Distribution, Distribution], Distribution]
"""What the next sibling, or the correction, is taken from: (target distribution, draft distribution)."""


@dataclass(frozen=True)
class RatioLike:
    """The shape of speculative sampling on chains, with its two formulas left open."""

    accept_prob: AcceptProb
    residual: Residual = ratio.residual
    LOSSLESS: bool = True  # what it claims
    TREES: bool = False
    NEEDS_DISTRIBUTIONS: bool = True
    SHARED_NOISE: bool = False

    def draw(self, distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
        return ratio.draw(distribution, rng, base, node, depth)

    def verify(
        self, proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int
    ) -> Verdict:
        for node, token in enumerate(proposal.tokens):
            target, draft = distributions[node], proposal.distribution(node)
            if not rng.bernoulli(Key(base, node, "accept"), min(1.0, self.accept_prob(target, draft, token))):
                left = self.residual(target, draft)
                return Verdict(list(range(node)), rng.categorical(Key(base, node, "next"), left), "correction")
        end = len(proposal)
        return Verdict(list(range(end)), rng.categorical(Key(base, end, "next"), distributions[end]), "bonus")


def _ratio(target: Distribution, draft: Distribution, token: int) -> float:
    return target.prob(token) / draft.prob(token)


def _inverse(target: Distribution, draft: Distribution, token: int) -> float:
    return draft.prob(token) / target.prob(token) if target.prob(token) > 0 else 1.0


def _other_token(target: Distribution, draft: Distribution, token: int) -> float:
    other = draft.token((int(np.argmax(draft.probs)) + 1) % draft.probs.size)
    return target.prob(token) / draft.prob(other) if draft.prob(other) > 0 else 1.0


def _likeliest(target: Distribution, draft: Distribution, token: int) -> float:
    return float(token == target.token(int(np.argmax(target.probs))))


def _likely_enough(target: Distribution, draft: Distribution, token: int) -> float:
    return float(target.prob(token) > 0.2)


def altered(rule: ModuleType, **functions: object) -> Rule:
    """A fresh copy of a production rule's own module with some of its functions replaced."""
    spec = rule.__spec__
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name, function in functions.items():
        setattr(copy, name, function)
    return cast(Rule, copy)


def _forgotten_weight(target: Distribution, draft: Distribution, weight: float) -> Array:
    return block.residual(target, draft, 1.0)


def _wrong_side(target: Distribution, draft: Distribution) -> Distribution:
    left = np.maximum(draft.probs.astype(np.float64) - target.on(draft), 0.0)
    total = float(left.sum())
    return Distribution(left / total, draft.ids) if total > 0 else target


RULES: dict[str, Rule] = {
    "resample from the target": RatioLike(_ratio, residual=lambda target, draft: target),
    "draft probability of another token": RatioLike(_other_token),
    "inverse ratio": RatioLike(_inverse),
    "accept what the target finds likeliest": RatioLike(_likeliest),
    "accept what the target finds likely enough": RatioLike(_likely_enough),
    "residual the wrong way round": altered(ratio, residual=_wrong_side),
    "block residual without its weight": altered(block, residual=_forgotten_weight),
}
"""Wrong acceptance rules for drawn chains, by what is wrong with them."""
RIGHT = RatioLike(_ratio)
"""Their right twin: the same code with the right formulas."""


class StaleNoise:
    """``match`` whose noise stays that of the round's first position."""

    LOSSLESS, TREES, NEEDS_DISTRIBUTIONS, SHARED_NOISE = True, True, False, True

    def draw(self, distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
        return rng.gumbel_argmax(base, distribution)

    def verify(
        self, proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int
    ) -> Verdict:
        return match.verify(proposal, distributions, _FixedPosition(rng, base), base)


@dataclass(frozen=True)
class _FixedPosition:
    rng: RandomSource
    position: int

    def bernoulli(self, key: Key, prob: float) -> bool:
        return self.rng.bernoulli(key, prob)

    def categorical(self, key: Key, distribution: Distribution) -> int:
        return self.rng.categorical(key, distribution)

    def gumbel_argmax(self, position: int, distribution: Distribution) -> int:
        return self.rng.gumbel_argmax(self.position, distribution)

    def gumbel(self, position: int, ids: Array) -> Array:
        return self.rng.gumbel(self.position, ids)


# ---- random sources


@dataclass(frozen=True)
class RekeyedRandomSource:
    """Asks another random source under another key."""

    rng: RandomSource
    rekey: Callable[[Key], Key]

    def bernoulli(self, key: Key, prob: float) -> bool:
        return self.rng.bernoulli(self.rekey(key), prob)

    def categorical(self, key: Key, distribution: Distribution) -> int:
        return self.rng.categorical(self.rekey(key), distribution)

    def gumbel_argmax(self, position: int, distribution: Distribution) -> int:
        return self.rng.gumbel_argmax(position, distribution)

    def gumbel(self, position: int, ids: Array) -> Array:
        return self.rng.gumbel(position, ids)


def by_position(rng: RandomSource) -> RandomSource:
    """Keyed by the position of the token instead of by round: a later round reuses the random draws that an
    earlier one has looked at and discarded."""
    return RekeyedRandomSource(rng, lambda key: Key(key.base + key.node, 0, key.use))


def one_use(rng: RandomSource) -> RandomSource:
    """The random draw that drew a draft also decides whether it is accepted."""
    return RekeyedRandomSource(rng, lambda key: Key(key.base, key.node, "draft"))


def one_round(rng: RandomSource) -> RandomSource:
    """Every round uses the first round's random draws."""
    return RekeyedRandomSource(rng, lambda key: Key(0, key.node, key.use))


# ---- drafters


@dataclass
class Edited:
    """Changes the drawn proposals of another drafter after having seen them."""

    drafter: Drafter
    edit: Callable[[Proposal], Proposal]
    needs: Sequence[str] = ()

    def begin(self, session: Session) -> None:
        self.drafter.begin(session)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        proposals = [self.edit(proposal) for proposal in self.drafter.propose(sessions, budgets)]
        for session, proposal in zip(sessions, proposals, strict=True):
            session.begin_draft()  # the loop would submit what is recorded instead
            for node, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
                distributions = proposal.draft_distributions
                session.record.add(token, parent, distributions[node] if distributions is not None else None)
        return [session.record.proposal() for session in sessions]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        self.drafter.observe(sessions, verdicts, seen)

    def end(self, session: Session) -> None:
        self.drafter.end(session)


class Dropping(Edited):
    """Drops what was drawn when the other drafter raises: ``edit`` sees the proposals of the other rounds."""

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        try:
            return super().propose(sessions, budgets)
        except Exception:
            for session in sessions:
                session.begin_draft()
            return [Proposal() for _ in sessions]


def cut_at_odd(proposal: Proposal) -> Proposal:
    """Drops drawn tokens: the chain ends before its first token with an odd id."""
    size = next((i for i, token in enumerate(proposal.tokens) if token % 2), len(proposal))
    distributions = proposal.draft_distributions
    return Proposal.chain(proposal.tokens[:size], distributions[:size] if distributions is not None else None)


def merge_repeats(proposal: Proposal) -> Proposal:
    """Merges away a drawn sibling that repeats an earlier one. For trees of one level."""
    return _picked(proposal, [i for i, token in enumerate(proposal.tokens) if token not in proposal.tokens[:i]])


def drop_repeats(proposal: Proposal) -> Proposal:
    """Drops a drawn node that repeats a chosen sibling, as a tree of several drafters is tempted to: what the chosen
    one lost of the distribution then never comes off the residual. For trees of one level."""
    chosen = [token for node, token in enumerate(proposal.tokens) if proposal.distribution(node).size == 1]
    distributions = map(proposal.distribution, range(len(proposal)))
    return _picked(
        proposal,
        [
            i
            for i, distribution in enumerate(distributions)
            if distribution.size == 1 or proposal.tokens[i] not in chosen
        ],
    )


def rank_by_id(proposal: Proposal) -> Proposal:
    """Sorts drawn siblings. For trees of one level."""
    return _picked(proposal, sorted(range(len(proposal)), key=proposal.tokens.__getitem__))


def _picked(proposal: Proposal, nodes: Sequence[int]) -> Proposal:
    distributions = [proposal.distribution(node) for node in nodes]
    return Proposal([proposal.tokens[node] for node in nodes], [-1] * len(nodes), distributions)


def flat_distributions(proposal: Proposal) -> Proposal:
    """States a distribution that the tokens were not drawn from: a uniform one."""
    distributions = [
        Distribution(np.full_like(distribution.probs, 1 / distribution.size), distribution.ids)
        for distribution in map(proposal.distribution, range(len(proposal)))
    ]
    return Proposal(proposal.tokens, proposal.parents, distributions)


# ---- pipelines


class FirstTokenOnly:
    """Lets the controls act on the first token after the prompt, and only the temperature on later ones."""

    def __init__(self, params: SamplingParams, prompt_length: int) -> None:
        self._all, self._some = Pipeline(params), Pipeline(SamplingParams(temperature=params.temperature))
        self._prompt_length = prompt_length

    def distribution(self, logits: Array, prefix: Sequence[int]) -> Distribution:
        pipeline: LogitsPipeline = self._all if len(prefix) == self._prompt_length else self._some
        return pipeline.distribution(logits, prefix)


class Unfiltered:
    """Leaves top-k, top-p and min-p out."""

    def __init__(self, params: SamplingParams) -> None:
        self._pipeline = Pipeline(SamplingParams(temperature=params.temperature))

    def distribution(self, logits: Array, prefix: Sequence[int]) -> Distribution:
        return self._pipeline.distribution(logits, prefix)
