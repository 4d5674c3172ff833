"""Section ``broken``: what is wrong on purpose must show. A check passes here when the fault is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .. import verify
from ..core.protocols import Drafter, Rule
from ..core.types import Proposal, SamplingParams
from ..drafters.draft_model import DraftModel
from ..sampling.random_source import KeyedRandomSource
from . import broken
from .checks import Check, Options
from .drive import PROMPT, decode, distance, plain, remembered, session
from .enumerated import DRAFT, OTHER, TARGET, TARGET2, chain, failing_chain, small_chain
from .shapes import Controlled, Scripted, by_the_discarded, mixture, sampled_tree
from .toy import ToyRuntime, hashed_logits, mixed_logits

BENT = 1e-3  # total variation that a fault must show: a million times what rounding may leave


def checks(options: Options) -> Iterator[Check]:
    """One check for each fault."""
    ratio, block = verify.rule("ratio"), verify.rule("block")
    for name, rule in broken.RULES.items():
        yield _caught(f"rule: {name}", distance(TARGET, 3, chain, rule, gamma=2, count=2, spare=1))
    yield _caught_tokens_of_match()

    yield _caught(
        "random source: keyed by position, block",
        distance(TARGET, 3, chain, block, gamma=2, count=3, wrap=broken.by_position),
    )
    yield _caught(
        "random source: keyed by position, a drafter that stops by what it saw",
        distance(
            TARGET2, 2, lambda rule: Controlled(small_chain(rule), by_the_discarded), ratio,
            gamma=2, count=4, spare=1, wrap=broken.by_position,
        ),
    )  # fmt: skip
    for name, wrap in (
        ("one random draw draws and accepts", broken.one_use),
        ("the same in every round", broken.one_round),
    ):
        yield _caught(f"random source: {name}", distance(TARGET, 3, chain, ratio, gamma=2, count=3, wrap=wrap))

    for name, edit in (
        ("drops drawn tokens", broken.cut_at_odd),
        ("states another distribution", broken.flat_distributions),
    ):
        yield _caught(f"drafter: {name}", distance(TARGET, 3, _edited(chain, edit), ratio, gamma=2, count=3))
    for name, rule in (("ratio", ratio), ("block", block)):
        found = distance(TARGET2, 2, _dropping, rule, gamma=3, count=4)
        yield _caught(f"drafter: drops what was drawn when it fails, {name}", found)
    for name, edit in (("merges drawn siblings", broken.merge_repeats), ("sorts drawn siblings", broken.rank_by_id)):
        found = distance(TARGET, 3, _edited(_siblings, edit), ratio, gamma=2, count=2, spare=1)
        yield _caught(f"drafter: {name}", found)
    found = distance(TARGET, 3, _edited(_chosen_then_drawn, broken.drop_repeats), ratio, gamma=2, count=2, spare=1)
    yield _caught("drafter: drops a drawn repeat of a chosen sibling", found)

    params = SamplingParams(temperature=1.0, top_k=2)
    for name, make in (
        ("controls act on the first token only", lambda params: broken.FirstTokenOnly(params, len(PROMPT))),
        ("top-k left out", broken.Unfiltered),
    ):
        found = distance(TARGET, 3, chain, ratio, gamma=2, count=3, params=params, make_pipeline=make)
        yield _caught(f"pipeline: {name}", found)


def _dropping(rule: Rule) -> Drafter:
    return broken.Dropping(failing_chain(RuntimeError)(rule), lambda proposal: proposal)


def _siblings(rule: Rule) -> Drafter:
    return Scripted(sampled_tree(DRAFT, [2], replacement=True))


def _chosen_then_drawn(rule: Rule) -> Drafter:
    return Scripted(mixture(OTHER, DRAFT, 1, keep_duplicates=True))


def _edited(make: Callable[[Rule], Drafter], edit: Callable[[Proposal], Proposal]) -> Callable[[Rule], Drafter]:
    return lambda rule: broken.Edited(make(rule), edit)


def _caught(name: str, found: float) -> Check:
    passed = found > BENT
    note = f"caught, distance {found:.3f}" if passed else f"NOT caught, distance {found:.1e}"
    return Check("broken", name, passed, note, {"total_variation": found})


def _caught_tokens_of_match() -> Check:
    target = remembered(hashed_logits(6, 11))
    rule = broken.StaleNoise()
    drafter = DraftModel(ToyRuntime(remembered(mixed_logits(target, hashed_logits(6, 12), 0.6)), 6))
    params, seeds = SamplingParams(temperature=1.0), range(20)
    differ = 0
    for seed in seeds:
        one = session(count=12, gamma=3, rng=KeyedRandomSource(seed), params=params)
        differ += list(decode(target, 6, drafter, rule, one)) != plain(
            target, KeyedRandomSource(seed), params, PROMPT, 12
        )
    note = f"{'caught' if differ else 'NOT caught'}, {differ} of {len(seeds)} answers differ"
    return Check("broken", "rule: match with stale noise", differ > 0, note, {"differ": differ, "compared": len(seeds)})
