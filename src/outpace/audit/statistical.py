"""Section ``statistical``: on a real model and with the production's random source, the first tokens of many
seeds follow the target's exact distribution.

The models run once for each text that comes up: rounds of all seeds share the logits remembered from there, so that
drafting, verification and commitment are repeated and forward passes are not. What was tested is two tokens an answer,
drafts of two: the second token comes out of accepted runs, of corrections and of second rounds alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .. import verify
from ..core.protocols import Rule, Runtime
from ..core.types import Array, Chunk, SamplingParams
from ..drafters.draft_model import DraftModel
from ..engine.loop import Loop
from ..kernels.sampling import Sampler, default_sampler
from ..runtimes.loading import LoadedModel
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import KeyedRandomSource
from . import broken
from .checks import Check, Options
from .drive import admit, commit_until, finish, session
from .engines.distributions import Evidence, against_distribution
from .equality import PROMPTS
from .toy import LogitsOf, ToyRuntime

LEVEL = 1e-4  # false alarms of one check, were everything right
_TEXTS = (PROMPTS[3], PROMPTS[1])  # little choice, and much
_COUNT, _GAMMA = 2, 2  # tokens compared, drafts a round
_SEEDS, _QUICK_SEEDS = 4000, 1000  # answers to a prompt
_PARAMS = {
    "T 1": SamplingParams(temperature=1.0),
    "T 1.3, top-p 0.9": SamplingParams(temperature=1.3, top_p=0.9),
}


class Remembered:
    """A real model's logits after a text, each worked out once: ``[vocab_size]`` float32."""

    def __init__(self, runtime: Runtime, prompt: Sequence[int]) -> None:
        self._runtime, self._prompt = runtime, tuple(prompt)
        self._cache = runtime.new_cache()
        self._slot = self._cache.open(len(prompt) + _COUNT + _GAMMA + 2)
        if len(prompt) > 1:
            runtime.forward([Chunk(self._slot, list(prompt[:-1]), logits_from=len(prompt) - 1)], self._cache)
        self._known: dict[tuple[int, ...], Array] = {}

    def __call__(self, text: tuple[int, ...]) -> Array:
        tail = text[1:]  # sessions know the last token of the prompt only: the rest is read here, once
        if tail not in self._known:
            rows = [self._prompt[-1], *tail]
            row = self._runtime.forward([Chunk(self._slot, rows, logits_from=len(tail))], self._cache).logits[0][0]
            self._known[tail] = row.copy()
            self._cache.keep(self._slot, len(self._prompt) - 1, [])
        return self._known[tail]


def checks(options: Options) -> Iterator[Check]:
    """Each rule against the exact distribution at two settings, and wrong rules that must be found."""
    target, draft = options.target, options.draft
    assert target is not None
    if draft is None:
        yield Check("statistical", "first tokens", True, "not run: without a draft model (--draft) nothing is drawn")
        return
    seeds = _QUICK_SEEDS if options.quick else _SEEDS
    sampler = default_sampler()
    prompts = [target.tokenizer.encode(text, add_special=True) for text in _TEXTS[: 1 if options.quick else None]]
    texts: Texts = [(Remembered(target.runtime, p), Remembered(draft.runtime, p), p) for p in prompts]
    for label, params in list(_PARAMS.items())[: 1 if options.quick else None]:
        for name in ("ratio", "block") if options.quick else ("ratio", "block", "match"):
            found = _evidence(target, draft, texts, verify.rule(name), params, seeds, options.seed, sampler)
            yield _check(f"{name}, {label}", found, seeds * len(prompts))
    # A wrong rule hides behind a draft that agrees with the target: here it is made to disagree.
    noise = 2 * np.random.default_rng(0).standard_normal(target.runtime.vocab_size).astype(np.float32)
    odd: Texts = [(logits, _disturbed(draft_logits, noise), prompt) for logits, draft_logits, prompt in texts]
    for fault in ("draft probability of another token", "resample from the target")[: 1 if options.quick else None]:
        found = _evidence(target, draft, odd, broken.RULES[fault], _PARAMS["T 1"], seeds, options.seed, sampler)
        caught = found.p_value is not None and found.p_value < LEVEL
        note = f"{'caught' if caught else 'NOT caught'}, p = {found.p_value or 0:.1e}"
        yield Check("statistical", f"a wrong rule ({fault}), T 1", caught, note, _values(found))


Texts = Sequence[tuple[LogitsOf, LogitsOf, list[int]]]


def _disturbed(logits_of: LogitsOf, noise: Array) -> LogitsOf:
    return lambda prefix: np.asarray(logits_of(prefix)) + noise


def _evidence(
    target: LoadedModel,
    draft: LoadedModel,
    texts: Texts,
    rule: Rule,
    params: SamplingParams,
    seeds: int,
    first_seed: int,
    sampler: Sampler | None,
) -> Evidence:
    samples = []
    pipeline = Pipeline(params)
    for number, (target_logits, draft_logits, prompt) in enumerate(texts):
        drafter = DraftModel(_runtime(draft_logits, draft))
        loop = Loop(_runtime(target_logits, target), drafter, rule, commit_until(count=_COUNT))
        for seed in range(first_seed, first_seed + seeds):
            rng = KeyedRandomSource(seed, sample=number, sampler=sampler)
            one = session(seed, count=_COUNT, gamma=_GAMMA, rng=rng, params=params, prompt=prompt[-1:], spare=_GAMMA)
            admit(loop, [one])
            finish(loop, [one])
            samples.append((number, *one.generated))

    def distribution(prefix: tuple[int, ...]) -> Array:
        number, *tail = prefix
        logits, _, prompt = texts[number]
        text = (prompt[-1], *tail)
        return pipeline.distribution(np.asarray(logits(text)), text).dense(target.runtime.vocab_size)

    return against_distribution(samples, distribution, range(1, _COUNT + 1), LEVEL)


def _runtime(logits_of: LogitsOf, model: LoadedModel) -> ToyRuntime:
    return ToyRuntime(logits_of, model.runtime.vocab_size, dtype=np.float32)


def _check(name: str, found: Evidence, answers: int) -> Check:
    if found.p_value is None:
        return Check("statistical", name, False, f"{answers} answers were too few to say anything", _values(found))
    note = f"p = {found.p_value:.3f} over {answers} answers (fails below {LEVEL:.0e}; "
    note += f"a distribution off by {found.detectable or 1:.3f} would fail with 90%)"
    return Check("statistical", name, found.p_value >= LEVEL, note, _values(found))


def _values(found: Evidence) -> dict[str, object]:
    return {"p_value": found.p_value, "chi_square": found.chi_square, "degrees": found.degrees,
            "draws": found.draws, "false_alarm_rate": LEVEL, "detectable_distance": found.detectable}  # fmt: skip
