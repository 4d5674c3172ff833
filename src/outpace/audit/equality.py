"""Section ``equality``: on a real model, the tokens are plain decoding's, and so are the bits of the logits.

Where a runtime promises that a row's bits depend on nothing else in the pass (the C kernels), any difference is a
failure. Where it does not (torch), logits may differ by rounding, and a token only where the two best are closer
than that rounding; both are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import drafters, verify
from ..core.cache import KVCache
from ..core.prefix_cache import shared_length
from ..core.protocols import Runtime
from ..core.top import top
from ..core.types import Array, Chunk, Rows, SamplingParams
from ..engine.build import load
from ..engine.engine import Engine
from ..engine.stream import Result
from ..runtimes.loading import LoadedModel
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import gumbel_noise
from .checks import Check, Options

PROMPTS = (
    "def read(path):\n    with open(path) as f:\n        return",
    "The river rose for nine days, and on the tenth",
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def",
    "1, 2, 3, 1, 2, 3, 1, 2,",
    "Three things are needed for bread:",
    "import os\nimport sys\nimport",
    "for i in range(10):\n    if i",
    "She said that she",
)
PARAMS = {
    "T 0": SamplingParams(),
    "T 0.7": SamplingParams(temperature=0.7),
    "T 1": SamplingParams(temperature=1.0),
    "T 1.5, top-p 0.9": SamplingParams(temperature=1.5, top_p=0.9),
}
_ROUNDING = 4.0  # times the largest difference of logits seen: closer than this two tokens may change places


_DRAFTERS = ("draft_model", "lookup", "draft_tree", "hybrid", "recycle")
_QUICK = 2  # the first so many drafters


def checks(options: Options) -> Iterator[Check]:
    """The bits of the rows, then the tokens of each drafter and rule."""
    target, draft = options.target, options.draft
    assert target is not None  # the runner puts the tiny pair where no model was named
    prompts = [target.tokenizer.encode(text, add_special=True) for text in PROMPTS[: 4 if options.quick else None]]
    rows = _rows(target, prompts[:2] if options.quick else prompts[:4])
    yield rows.check
    rules = ("match", "ratio", "block", *(name for name in verify.registered() if verify.rule(name).LOSSLESS))
    for drafter in (*_DRAFTERS[: _QUICK if options.quick else None], *drafters.registered()):
        needs_draft = drafters.needs_draft(drafter)
        if needs_draft and draft is None:
            continue
        for accept in rules:
            yield _tokens(target, draft if needs_draft else None, drafter, accept, prompts, rows, options)


# ---- bits


@dataclass(frozen=True)
class _Rows:
    check: Check
    largest: float
    promised: bool


def _rows(target: LoadedModel, prompts: Sequence[list[int]]) -> _Rows:
    """Every row of verification passes against the pass over that row alone."""
    runtime = target.runtime
    promised = runtime.capabilities().row_invariant
    compared = same = 0
    largest, scale = 0.0, 0.0
    for prompt in prompts:
        alone = _one_by_one(runtime, prompt, 12)  # [12, vocab_size] after the prompt and each of 11 greedy tokens
        text = [*prompt, *alone.argmax(-1).tolist()]
        scale = max(scale, float(np.abs(alone).max()))
        for found, expected in _passes(runtime, prompt, text, alone, prompts):
            compared += found.shape[0]
            same += int((found == expected).all(-1).sum())
            largest = max(largest, float(np.abs(found - expected).max()))
    identical = same == compared
    if identical:
        note = f"{compared} rows of packed passes, all bit-identical to one-row passes"
    else:
        note = f"{same} of {compared} rows bit-identical; largest difference {largest:.1e} (logits up to {scale:.0f})"
        note += "" if promised else f"; the {target.backend} backend does not promise more"
    values: dict[str, object] = {"rows": compared, "identical": same, "largest_difference": largest,
                                 "promised": promised}  # fmt: skip
    return _Rows(Check("equality", "logits of a row", identical or not promised, note, values), largest, promised)


def _one_by_one(runtime: Runtime, prompt: Sequence[int], count: int) -> Array:
    """Greedy decoding, one row a pass from the first prompt token on: ``[count, vocab_size]``."""
    cache = runtime.new_cache()
    slot = cache.open(len(prompt) + count)
    for token in prompt[:-1]:
        runtime.forward([Chunk(slot, [token])], cache)
    token, rows = prompt[-1], []
    for _ in range(count):
        rows.append(runtime.forward([Chunk(slot, [token])], cache).logits[0][-1])
        token = int(rows[-1].argmax())
    return np.stack(rows)


def _passes(
    runtime: Runtime, prompt: Sequence[int], text: Sequence[int], alone: Array, prompts: Sequence[list[int]]
) -> Iterator[tuple[Array, Array]]:
    """(rows of a pass, the same rows alone): prefill chunks, numbers of rows, places in the batch, trees."""
    end = len(prompt) - 1
    for size in (1, 7, len(prompt)):
        cache, slot = _read(runtime, prompt[:-1], size, len(text) + 8)
        for rows in (1, 2, 3, 5, 9):
            yield _stacked(runtime.forward([Chunk(slot, text[end : end + rows])], cache).logits[0]), alone[:rows]
            cache.keep(slot, end, [])
    others = [other for other in prompts if list(other) != list(prompt)][:3]
    for place in range(len(others) + 1):
        cache, slot = _read(runtime, prompt[:-1], 256, len(text) + 8)
        chunks = []
        for other in others:
            there = cache.open(len(other) + 1)
            chunks.append(Chunk(there, other))
        chunks.insert(place, Chunk(slot, text[end : end + 5]))
        yield _stacked(runtime.forward(chunks, cache).logits[place]), alone[:5]
    if runtime.capabilities().trees:
        cache, slot = _read(runtime, prompt[:-1], 256, len(text) + 8)
        wrong = [(token + 1) % runtime.vocab_size for token in text[end + 1 : end + 4]]
        # The chain of the text with a wrong sibling beside each of its tokens.
        tokens = [text[end], wrong[0], text[end + 1], wrong[1], text[end + 2], wrong[2], text[end + 3]]
        logits = runtime.forward([Chunk(slot, tokens, parents=[-1, 0, 0, 2, 2, 4, 4])], cache).logits[0]
        yield _stacked(logits[[0, 2, 4, 6]]), alone[:4]


def _stacked(rows: Rows) -> Array:
    return np.stack(list(rows))


def _read(runtime: Runtime, tokens: Sequence[int], size: int, capacity: int) -> tuple[KVCache, int]:
    cache = runtime.new_cache()
    slot = cache.open(capacity)
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        runtime.forward([Chunk(slot, part, logits_from=len(part))], cache)
    return cache, slot


# ---- tokens


def _tokens(
    target: LoadedModel,
    draft: LoadedModel | None,
    drafter: str,
    accept: str,
    prompts: Sequence[list[int]],
    rows: _Rows,
    options: Options,
) -> Check:
    """``match`` at every temperature, other rules at temperature 0: against plain decoding, each prompt alone."""
    labels = list(PARAMS) if accept == "match" else ["T 0"]
    gammas = (1, 4) if options.quick else (1, 2, 3, 5, 8)
    length = 16 if options.quick else 32
    ids, params, names = [], [], []
    for label in labels:
        for i, prompt in enumerate(prompts):
            ids.append(prompt)
            params.append(_with(PARAMS[label], seed=options.seed + i, max_tokens=length))
            names.append(f"{label}, prompt {i}")
    engines = {batch: _engine(target, draft, drafter, accept, batch) for batch in (1, 3)}
    expected = [engines[1].generate(p, q, gamma=0) for p, q in zip(ids, params, strict=True)]
    compared = accepted = 0
    differences: list[str] = []
    unexplained = 0
    for batch, engine in engines.items():
        for gamma in gammas:
            # Reversed in the larger batch, so that no prompt keeps its place or its neighbours.
            order = list(range(len(ids))) if batch == 1 else list(reversed(range(len(ids))))
            results = engine.generate([ids[i] for i in order], [params[i] for i in order], gamma=gamma)
            assert isinstance(results, list)
            for i, result in zip(order, results, strict=True):
                plain = expected[i]
                assert isinstance(plain, Result)
                compared += 1
                accepted += result.report.accepted
                if result.report.warnings:
                    unexplained += 1
                    differences.append(f"{names[i]}: {result.report.warnings[0]}")
                elif result.token_ids != plain.token_ids:
                    place, gap = first_difference(target, ids[i], params[i], plain.token_ids, result.token_ids)
                    excused = not rows.promised and gap is not None and gap < _ROUNDING * rows.largest
                    unexplained += not excused
                    there = "" if gap is None else f", the two best logits {gap:.1e} apart"
                    differences.append(f"{names[i]}, gamma {gamma}, batch {batch}: from token {place} on{there}")
    note = f"{compared} answers equal plain decoding's token for token, {accepted} drafts accepted"
    if differences:
        ties = "" if unexplained else " (ties within the backend's rounding)"
        note = f"{len(differences)} of {compared} answers differ{ties}; first {differences[0]}"
    kinds = "every temperature" if accept == "match" else "temperature 0"
    values: dict[str, object] = {"compared": compared, "accepted": accepted, "differ": differences[:5],
                                 "unexplained": unexplained}  # fmt: skip
    return Check("equality", f"{accept}, {drafter}, {kinds}", unexplained == 0, note, values)


def _with(params: SamplingParams, **changes: int) -> SamplingParams:
    known: Mapping[str, object] = {"temperature": params.temperature, "top_p": params.top_p, "ignore_eos": True}
    return SamplingParams(**{**known, **changes})  # type: ignore[arg-type]


def _engine(target: LoadedModel, draft: LoadedModel | None, drafter: str, accept: str, batch: int) -> Engine:
    eager = {"lookup": {"min_match": 1}} if drafter == "lookup" else None  # so that every prompt drafts something
    return load(
        target, draft, drafter=drafter, controller="fixed", accept=accept, max_batch=batch, drafter_options=eager
    )


def first_difference(
    target: LoadedModel, prompt: Sequence[int], params: SamplingParams, one: Sequence[int], other: Sequence[int]
) -> tuple[int, float | None]:
    """The first place where two answers part, and the difference of the two best tokens' logits there (the
    noise of ``match`` included). None for the distance when one answer only ends earlier."""
    place = shared_length(one, other)
    if place == min(len(one), len(other)):
        return place, None
    tokens = [*prompt, *one[:place]]
    cache, slot = _read(target.runtime, tokens[:-1], 256, len(tokens))
    row = target.runtime.forward([Chunk(slot, tokens[-1:])], cache).logits[0][-1]  # [vocab_size]
    if params.temperature == 0:
        first, second = row[top(row, 2)]
        return place, float(first - second)
    distribution = Pipeline(params).distribution(row, tokens)
    ids = np.arange(distribution.size) if distribution.ids is None else distribution.ids
    noisy = distribution.scores + gumbel_noise(params.seed or 0, 0, len(tokens), ids)
    if noisy.size < 2:
        return place, None
    first, second = noisy[top(noisy, 2)]
    return place, float(first - second) * params.temperature
