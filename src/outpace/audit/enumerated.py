"""Section ``exact``: the distribution of the output is the target's, every outcome of the random draws through the
production loop.

Rules that draw from distributions (``NEEDS_DISTRIBUTIONS``) are enumerated. ``match`` takes its tokens from continuous
noise: its proof is that the tokens are those of plain decoding, whatever is drafted, and that plain decoding's noise is
fresh at every position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .. import drafters, verify
from ..core.errors import ConstraintError
from ..core.protocols import Drafter, Parts, Rule
from ..core.types import SamplingParams
from ..drafters.common.own_cache import OwnCacheDraft
from ..drafters.draft_model import DraftModel
from ..drafters.draft_tree import Config as TreeConfig
from ..drafters.draft_tree import DraftTree
from ..drafters.hybrid import Hybrid
from ..drafters.intersect import Intersect
from ..drafters.lookup import Config as LookupConfig
from ..drafters.lookup import Lookup
from ..drafters.recycle import Config as RecycleConfig
from ..drafters.recycle import Recycle
from ..drafters.reencode import Reencode
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import KeyedRandomSource
from .checks import Check, Options, skipped
from .controlled import Timed
from .drive import PROMPT, decode, distance, plain, remembered, session
from .shapes import (
    Controlled,
    Scripted,
    by_the_discarded,
    by_the_text,
    mixed_chain,
    mixture,
    right_first,
    sampled_tree,
    top_tree,
)
from .toy import LogitsOf, ToyRuntime, failing_logits, hashed_logits, mixed_logits
from .vocabularies import THEIRS, other_draft

SAME = 1e-9  # total variation that rounding may leave

TARGET = remembered(hashed_logits(3, 1))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(3, 2), 0.3))
OTHER = remembered(hashed_logits(3, 7))
FOREIGN = remembered(hashed_logits(THEIRS.size, 4))
TARGET2, DRAFT2 = remembered(hashed_logits(2, 5, sharpness=1.0)), remembered(hashed_logits(2, 6, sharpness=1.0))
_TARGETS = {2: TARGET2, 3: TARGET}
WIDE, LEAVES = TreeConfig(depth=2, width=2, children=2), TreeConfig(depth=2, width=1, children=2)
PIPELINES = {
    "T 0": SamplingParams(),
    "T 1": SamplingParams(temperature=1.0),
    "penalties, bias, top-p": SamplingParams(
        temperature=1.0,
        presence_penalty=0.4,
        frequency_penalty=0.7,
        repetition_penalty=1.5,
        logit_bias={1: 0.8},
        top_p=0.9,
    ),
    "top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "T 1.7, top-k, top-p, min-p": SamplingParams(temperature=1.7, top_k=3, top_p=0.9, min_p=0.1),
    "T 0.5": SamplingParams(temperature=0.5),
    "T 1.7": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(temperature=1.0, top_k=2),
    "min-p": SamplingParams(temperature=1.0, min_p=0.2),
    "T 0, penalties": SamplingParams(frequency_penalty=1.0, repetition_penalty=0.8),
    "presence, top-k": SamplingParams(temperature=0.8, presence_penalty=-1.5, top_k=2),
    "bias, top-p": SamplingParams(temperature=1.2, logit_bias={0: -2.0, 2: 1.0}, top_p=0.8),
}
_QUICK = 3  # the first so many pipelines


@dataclass(frozen=True)
class Shape:
    """A way to draft. ``count``: tokens whose joint distribution is compared; ``spare``: how many more a draft may
    look."""

    name: str
    make: Callable[[Rule], Drafter]
    gamma: int
    count: int
    spare: int = 0
    tree: bool = False
    vocab_size: int = 3  # 2 where three would have too many outcomes
    failing: bool = False  # drafting fails in some rounds, depending on what was drawn


def chain(rule: Rule) -> Drafter:
    """A chain drawn from a draft model, a pass for each token."""
    return DraftModel(ToyRuntime(DRAFT, 3))


def small_chain(rule: Rule) -> Drafter:
    """The same over two tokens."""
    return DraftModel(ToyRuntime(DRAFT2, 2))


def failing_chain(error: type[Exception] | None) -> Callable[[Rule], Drafter]:
    """:func:`small_chain`, whose draft model fails behind a token 0."""
    return lambda rule: DraftModel(ToyRuntime(failing_logits(DRAFT2, error), 2))


def hybrid(join: str, vocab_size: int = 3, draft: LogitsOf = DRAFT) -> Callable[[Rule], Drafter]:
    """Lookup, then a draft model, for which lookup drafts as well, behind it or beside it."""
    runtime = ToyRuntime(draft, vocab_size)
    return lambda rule: Hybrid(
        {"lookup": Lookup(_ANY_MATCH), "draft_model": DraftModel(runtime, Lookup(_ANY_MATCH))}, join
    )


def _trained_heads() -> list[Shape]:
    """Medusa and EAGLE; none without torch."""
    if skipped():
        return []
    from ..drafters.eagle.drafter import Eagle
    from ..drafters.medusa.drafter import Medusa
    from .heads import toy_eagle, toy_medusa

    medusa, eagle, third = toy_medusa(3, heads=2), toy_eagle(3), toy_eagle(3, third=True, draft_vocab=2)
    # Under a rule that takes no trees, the production's tree drafters draft chains: two of them show it.
    return [
        Shape("Medusa", lambda rule: Medusa(medusa, 3), 4, 2, spare=2),
        Shape("Medusa, static tree", lambda rule: Medusa(medusa, 3, static=True), 4, 2, spare=2, tree=True),
        Shape("EAGLE", lambda rule: Eagle(eagle, 3, depth=2, width=2), 4, 2, spare=2, tree=True),
        Shape("EAGLE 3, pruned vocabulary", lambda rule: Eagle(third, 3, depth=2, width=2), 3, 2, spare=1),
    ]


_ANY_MATCH = LookupConfig(min_match=1, stop_below=0.3)
_FAULTS: dict[str, type[Exception] | None] = {
    "raises": RuntimeError,
    "gives NaN": None,
    "runs out of memory": MemoryError,
    "cannot follow a constraint": ConstraintError,
}
_OWN_WARP = Pipeline(SamplingParams(temperature=0.7, top_k=2, top_p=0.5))
SHAPES = [
    Shape("drawn chain of 1", chain, 1, 3),
    Shape("drawn chain of 2", chain, 2, 3),
    Shape("drawn chain of 3", small_chain, 3, 4, vocab_size=2),
    Shape(
        "drawn chain, the draft warped otherwise",
        lambda rule: Scripted(sampled_tree(DRAFT, [1, 1], replacement=True, pipeline=_OWN_WARP)), 2, 3,
    ),
    Shape("chosen chain", lambda rule: Scripted(top_tree(DRAFT, [1, 1])), 2, 3),
    Shape("chain, chosen then drawn", lambda rule: Scripted(mixed_chain(OTHER, DRAFT, [False, True])), 2, 3),
    Shape("chain, drawn then chosen", lambda rule: Scripted(mixed_chain(OTHER, DRAFT, [True, False])), 2, 3),
    Shape("drafting stops and starts by the text", lambda rule: Controlled(chain(rule), by_the_text), 2, 3),
    Shape(
        "drafting stops and starts by discarded drafts",
        lambda rule: Controlled(small_chain(rule), by_the_discarded), 2, 4, spare=1, vocab_size=2,
    ),
    Shape(
        "siblings drawn with replacement",
        lambda rule: Scripted(sampled_tree(DRAFT, [2, 1], replacement=True)), 6, 2, spare=2, tree=True,
    ),
    Shape(
        "siblings drawn without replacement",
        lambda rule: Scripted(sampled_tree(DRAFT, [2, 1], replacement=False)), 6, 2, spare=2, tree=True,
    ),
    Shape("top-k tree", lambda rule: Scripted(top_tree(DRAFT, [2, 2])), 6, 3, spare=1, tree=True),
    Shape(
        "tree, chosen then drawn from the rest",
        lambda rule: Scripted(mixture(OTHER, DRAFT, 2, keep_duplicates=False)), 4, 2, spare=2, tree=True,
    ),
    Shape(
        "tree, chosen then drawn, repeats kept",
        lambda rule: Scripted(mixture(OTHER, DRAFT, 2, keep_duplicates=True)), 4, 2, spare=2, tree=True,
    ),
    *_trained_heads(),
    Shape("draft model's tree", lambda rule: DraftTree(ToyRuntime(DRAFT, 3), WIDE), 4, 2, spare=2, tree=True),
    Shape(
        "draft model's chain with leaves",
        lambda rule: DraftTree(ToyRuntime(DRAFT, 3), LEAVES), 4, 2, spare=2, tree=True,
    ),
    Shape("lookup", lambda rule: Lookup(_ANY_MATCH), 3, 3, spare=1),
    Shape("token recycling", lambda rule: Recycle(RecycleConfig(top=2)), 4, 3, spare=1, tree=True),
    Shape("lookup, then the draft model", hybrid("extend"), 3, 2, spare=1),
    Shape("lookup beside the draft model", hybrid("beside"), 3, 2, spare=1, tree=True),
    Shape("lookup for the draft model", lambda rule: DraftModel(ToyRuntime(DRAFT, 3), Lookup(_ANY_MATCH)), 3, 3),
    Shape("on the target's own cache", lambda rule: OwnCacheDraft(ToyRuntime(DRAFT, 3)), 2, 3),
    Shape("another vocabulary, shared tokens", lambda rule: Intersect(other_draft(FOREIGN), 3), 2, 3),
    Shape("another vocabulary, through text", lambda rule: Reencode(other_draft(FOREIGN)), 3, 3),
    *(
        Shape(f"drawn chain of 3 that {fault}", failing_chain(error), 3, 4, vocab_size=2, failing=True)
        for fault, error in _FAULTS.items()
    ),
    Shape(
        "on the target's own cache, out of memory",
        lambda rule: OwnCacheDraft(ToyRuntime(failing_logits(DRAFT, MemoryError), 3)), 2, 3, failing=True,
    ),
    Shape(
        "drawn tree that raises",
        lambda rule: Scripted(sampled_tree(failing_logits(DRAFT, RuntimeError), [2, 1], replacement=False)),
        6, 2, spare=2, tree=True, failing=True,
    ),
    Shape(
        "draft model's tree that gives NaN",
        lambda rule: DraftTree(ToyRuntime(failing_logits(DRAFT, None), 3), WIDE),
        4, 2, spare=2, tree=True, failing=True,
    ),
    Shape(
        "lookup beside a draft model that raises",
        hybrid("beside", draft=failing_logits(DRAFT, RuntimeError)), 3, 2, spare=1, tree=True, failing=True,
    ),
]  # fmt: skip


def registered(vocab_size: int = 3, draft: LogitsOf = DRAFT) -> list[Shape]:
    """The drafters that other packages register, as they are by default."""

    def made(name: str) -> Callable[[Rule], Drafter]:
        module, runtime = drafters.module(name), ToyRuntime(draft, vocab_size)
        return lambda rule: module.create(module.Config(), Parts(vocab_size, target=runtime, draft=runtime))

    return [Shape(f"registered: {name}", made(name), 3, 2, spare=2) for name in drafters.registered()]


def enumerable() -> list[str]:
    """The lossless rules whose distribution can be enumerated."""
    return [name for name, rule in verify.rules().items() if rule.LOSSLESS and rule.NEEDS_DISTRIBUTIONS]


def checks(options: Options) -> Iterator[Check]:
    """One check for each rule and shape, over all pipelines; then the tokens of ``match``."""
    pipelines = list(PIPELINES.items())[: _QUICK if options.quick else None]
    for name in enumerable():
        rule = verify.rule(name)
        for shape in (*SHAPES, *registered()):
            if shape.tree and not rule.TREES:
                continue
            yield _distribution(name, rule, shape, dict(pipelines))
        yield _distribution_under_the_controller(name, rule, dict(pipelines), 4 if options.quick else 5)
    if not options.quick:
        yield _distribution_of_a_longer_run()
    yield _tokens_of_match(options)


def shape_distance(shape: Shape, rule: Rule, params: SamplingParams | None = None) -> float:
    """Total variation between the distribution of the loop's output and the target's, for one pipeline."""
    target = _TARGETS[shape.vocab_size]
    return distance(
        target,
        shape.vocab_size,
        shape.make,
        rule,
        gamma=shape.gamma,
        count=shape.count,
        params=params,
        spare=shape.spare,
        failing=shape.failing,
    )


def _distribution(name: str, rule: Rule, shape: Shape, pipelines: dict[str, SamplingParams]) -> Check:
    found = {label: shape_distance(shape, rule, params) for label, params in pipelines.items()}
    worst = max(found, key=found.__getitem__)
    passed = found[worst] < SAME
    note = f"distance {found[worst]:.1e} at most over {len(found)} pipelines"
    note += "" if passed else f" (with {worst})"
    values: dict[str, object] = {"rule": name, "tokens": shape.count, "total_variation": found}
    return Check("exact", f"{name}, {shape.name}", passed, note, values)


def _distribution_under_the_controller(
    name: str, rule: Rule, pipelines: dict[str, SamplingParams], count: int
) -> Check:
    """The production's controller decides from round to round, by what earlier rounds accepted and discarded."""
    found, decided = {}, set()
    for label, params in pipelines.items():
        made: list[Timed] = []

        def controller(made: list[Timed] = made) -> Timed:
            made.append(Timed())
            return made[-1]

        found[label] = distance(
            TARGET2, 2, small_chain, rule, gamma=3, count=count, params=params, make_controller=controller
        )
        decided |= {tuple(one.decided) for one in made}
    worst = max(found.values())
    passed = worst < SAME and len(decided) > 2  # a controller that never changes its mind would prove nothing
    note = f"distance {worst:.1e} at most over {len(found)} pipelines, {len(decided)} courses of decisions"
    values: dict[str, object] = {"rule": name, "tokens": count, "total_variation": found, "courses": len(decided)}
    return Check("exact", f"{name}, drafting under the controller", passed, note, values)


def _distribution_of_a_longer_run() -> Check:
    """Five tokens, so that a chain of three refuses and starts again several times; and three of three."""
    found = {}
    for name in enumerable():
        rule = verify.rule(name)
        found[f"{name}, 5 tokens of 2"] = distance(TARGET2, 2, small_chain, rule, gamma=3, count=5)
        found[f"{name}, 3 tokens of 3"] = distance(TARGET, 3, chain, rule, gamma=3, count=3, spare=1)
    note = f"distance {max(found.values()):.1e} at most"
    passed = max(found.values()) < SAME
    return Check("exact", "longer runs, drawn chain of 3", passed, note, {"total_variation": found})


def _tokens_of_match(options: Options) -> Check:
    target = remembered(hashed_logits(6, 11))
    draft = remembered(mixed_logits(target, hashed_logits(6, 12), 0.6))
    rule = verify.rule("match")
    drafters: dict[str, Drafter] = {
        "draft model": DraftModel(ToyRuntime(draft, 6)),
        "drawn tree": Scripted(sampled_tree(draft, [2, 1, 1], replacement=False)),
        "top-k tree": Scripted(top_tree(draft, [3, 2])),
        "chosen and drawn": Scripted(mixture(draft, target, 2, keep_duplicates=True)),
        "lookup": Lookup(_ANY_MATCH),
        "token recycling": Recycle(RecycleConfig()),
        "lookup, then the draft model": hybrid("extend", 6, draft)(rule),
        "lookup and the draft model": hybrid("beside", 6, draft)(rule),
        "half right": Scripted(right_first(target, 6, 2)),
        "draft model's tree": DraftTree(ToyRuntime(draft, 6), TreeConfig(depth=3, width=2)),
    }
    drafters |= {shape.name: shape.make(rule) for shape in registered(6, draft)}
    if not skipped():
        from ..drafters.eagle.drafter import Eagle
        from ..drafters.medusa.drafter import Medusa
        from .heads import toy_eagle, toy_medusa

        drafters |= {
            "Medusa": Medusa(toy_medusa(6), 6),
            "EAGLE": Eagle(toy_eagle(6), 6, depth=3, width=2),
            "EAGLE 3": Eagle(toy_eagle(6, third=True, draft_vocab=4), 6, depth=3, width=2),
        }
    compared, wrong = 0, []
    for label, params in PIPELINES.items():
        for seed in range(options.seed, options.seed + (1 if options.quick else 8)):
            expected = tuple(plain(target, KeyedRandomSource(seed), params, PROMPT, 12))
            for name, drafter in drafters.items():
                for gamma in (1, 4, 8) if options.quick else (1, 2, 3, 5, 8):
                    one = session(count=12, gamma=gamma, rng=KeyedRandomSource(seed), params=params)
                    compared += 1
                    if decode(target, 6, drafter, rule, one) != expected:
                        wrong.append(f"{name}, gamma {gamma}, {label}, seed {seed}")
                one = session(count=12, gamma=8, rng=KeyedRandomSource(seed), params=params)
                one.draft.adaptive, compared = True, compared + 1
                if decode(target, 6, drafter, rule, one, controller=Timed()) != expected:
                    wrong.append(f"{name}, under the controller, {label}, seed {seed}")
    note = (
        f"{compared} answers, all plain decoding's" if not wrong else f"{len(wrong)} of {compared} differ: {wrong[0]}"
    )
    return Check("exact", "match, tokens of every shape", not wrong, note, {"compared": compared, "differ": len(wrong)})
