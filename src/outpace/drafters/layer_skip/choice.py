"""Which layers to leave out when the target drafts for itself: a search for the best predicted speed-up.

The text to draft is the target's own greedy answer to a few prompts. Layers that change the residual stream least go
first (block influence: Men et al., ShortGPT, arXiv 2403.03853); then single layers are taken out and put
back as long as that helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from ...control.pass_costs import measure_passes
from ...core.errors import DrafterError
from ...core.protocols import Runtime
from ...core.report import expected_tokens
from ...core.types import Array, Chunk, softmax
from ...families.config import DecoderConfig
from ...runtimes.loading import LoadedModel

PROMPTS = (
    "def moving_average(values, window):\n    ",
    "The lighthouse keeper wrote in her log that evening:",
)
_GAMMAS = range(1, 5)
_COST_SECONDS = 1.0  # for measuring what passes over more rows cost; chosen by hand
_PATIENCE = 6  # sets in a row, none better than the best, that end the first search; chosen by hand
_NEIGHBOURS = 4  # layers tried on either side in each step of the second; chosen by hand
_DEPTH = 3  # drafts after each place of the text where drafting is tried; chosen by hand


@runtime_checkable
class Layered(Runtime, Protocol):
    """A runtime that can run some of its layers alone, on its own caches."""

    layers: int

    def with_layers(self, layers: Sequence[int], head: int = 0) -> Runtime: ...


@dataclass(frozen=True)
class Choice:
    """A set of layers to leave out. ``agreement``: how often draft and target have the same favourite, which is alpha
    at temperature 0; ``overlap``: E[min(p, q)], which is alpha at temperature 1; ``cost``: c, the part of the weights
    that a draft step reads; ``speedup``: predicted for the mean of both alphas with the best ``gamma``."""

    left_out: tuple[int, ...]
    agreement: float
    overlap: float
    cost: float
    gamma: int
    speedup: float

    def __str__(self) -> str:
        layers = ",".join(map(str, self.left_out))
        return (
            f"without {layers}: alpha {self.agreement:.3f} greedy and {self.overlap:.3f} at temperature 1, "
            f"c {self.cost:.3f}, predicted {self.speedup:.3f}x with gamma {self.gamma}"
        )


def choose_layers(
    model: LoadedModel,
    *,
    head: int = 0,
    tell: Callable[[str], None] = print,
    rows_cost: Callable[[float], float] | None = None,
    prompts: Sequence[str] = PROMPTS,
    tokens: int = 48,
    most: int = 24,
) -> Choice:
    """The set of layers to leave out whose predicted speed-up is greatest, ``tell`` of each one tried.

    ``head``: token ids that the draft's head keeps (0: all). ``rows_cost``: v(n), a target pass over n rows over one
    row (measured when None). ``tokens``: length of each answer that is drafted. ``most``: sets tried at most. The
    model's first layer is always kept. A model of one layer has nothing to leave out: DrafterError.
    """
    if model.config.layers < 2:
        raise DrafterError(f"{model.name} has one layer only: the drafter 'layer_skip' has nothing to leave out")
    trial = _Trial(model, prompts, tokens, head)
    if rows_cost is None:
        rows = (1, *(gamma + 1 for gamma in _GAMMAS))
        rows_cost = measure_passes(model.runtime, rows=rows, limit_seconds=_COST_SECONDS).relative
    v = {gamma: rows_cost(gamma + 1) for gamma in _GAMMAS}
    tried: dict[tuple[int, ...], Choice] = {}

    def attempt(left_out: Collection[int]) -> Choice:
        key = tuple(sorted(left_out))
        if key not in tried:
            agreement, overlap = trial.alphas(key)
            alpha = (agreement + overlap) / 2
            cost = draft_cost(model.config, len(key), head)
            speedups = {g: expected_tokens(alpha, g) / (v[g] + g * cost) for g in _GAMMAS}
            gamma = max(speedups, key=speedups.__getitem__)
            tried[key] = Choice(key, agreement, overlap, cost, gamma, speedups[gamma])
            tell(str(tried[key]))
        return tried[key]

    order = trial.by_influence()  # least first
    best = attempt(order[:1])
    behind = 0
    for count in range(2, len(order) + 1):
        choice = attempt(order[:count])
        behind = 0 if choice.speedup > best.speedup else behind + 1
        best = max(best, choice, key=_speedup)
        if behind == _PATIENCE or len(tried) >= most:
            break
    while True:  # the least that is kept, and the greatest that is left out, change sides
        out = set(best.left_out)
        kept = [layer for layer in order if layer not in out][:_NEIGHBOURS]
        back = [layer for layer in reversed(order) if layer in out][:_NEIGHBOURS] if len(out) > 1 else []
        moves = [out | {layer} for layer in kept] + [out - {layer} for layer in back]
        fresh = [move for move in moves if tuple(sorted(move)) not in tried][: max(0, most - len(tried))]
        if not fresh or (better := max((attempt(move) for move in fresh), key=_speedup)).speedup <= best.speedup:
            return best
        best = better


def _speedup(choice: Choice) -> float:
    return choice.speedup


def draft_cost(config: DecoderConfig, left_out: int, head: int = 0) -> float:
    """c: weights read by a draft step without so many layers over those of a whole pass (2211.17192, section 3.3)."""
    layer = sum(math.prod(config.shape(weight)) for weight in config.weights if weight.layered)
    output = config.vocab_size * config.hidden
    drafted = min(head or config.vocab_size, config.vocab_size) * config.hidden
    return ((config.layers - left_out) * layer + drafted) / (config.layers * layer + output)


class _Trial:
    """The target's own answers, its distributions along them, and places in them where drafting starts."""

    def __init__(self, model: LoadedModel, prompts: Sequence[str], tokens: int, head: int) -> None:
        self._runtime: Layered = model.runtime  # type: ignore[assignment]
        self._layers, self._head = model.config.layers, head
        self._cache = model.runtime.new_cache()
        self._starts: list[tuple[int, Sequence[int], list[Array]]] = []  # slot, tokens to read, target_probs
        self._changes = np.zeros(self._layers)
        for prompt in prompts:
            self._answer(model.tokenizer.encode(prompt, add_special=True), tokens)

    def _answer(self, prompt: list[int], count: int) -> None:
        """Decode greedily, then read the answer once more for its distributions and what each layer changes."""
        runtime, cache = self._runtime, self._cache
        slot = cache.open(len(prompt) + count)
        text, rows = list(prompt), list(prompt)
        while len(text) < len(prompt) + count:
            logits = runtime.forward([Chunk(slot, rows, logits_from=len(rows) - 1)], cache).logits[0]
            rows = [int(logits[-1].argmax())]
            text += rows
        whole = cache.open(len(text))
        names = [f"layer.{layer}" for layer in range(self._layers)]
        seen = runtime.forward([Chunk(whole, text, logits_from=len(prompt) - 1)], cache, names)
        streams = [np.stack(list(seen.features[name][0])) for name in names]  # each [rows, hidden]
        for layer in range(1, self._layers):
            before, after = streams[layer - 1], streams[layer]
            lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
            self._changes[layer] += 1 - ((before * after).sum(axis=1) / np.maximum(lengths, 1e-8)).mean()
        target_probs = [softmax(row) for row in seen.logits[0]]  # each [vocab], the first after the prompt
        for place in range(0, count - _DEPTH, _DEPTH):
            length = len(prompt) + place - 1  # cached there, when the last token read is pending
            start = cache.copy(slot, length, length + _DEPTH)
            self._starts.append((start, text[length : length + _DEPTH], target_probs[place : place + _DEPTH]))
        cache.close(whole)
        cache.close(slot)

    def by_influence(self) -> list[int]:
        """The layers but for the first, those that change the stream least first."""
        return [layer for layer in self._changes.argsort().tolist() if layer > 0]

    def alphas(self, left_out: Collection[int]) -> tuple[float, float]:
        """Agreement and overlap (see :class:`Choice`) over the first depths after every start."""
        kept = [layer for layer in range(self._layers) if layer not in left_out]
        draft = self._runtime.with_layers(kept, self._head)
        overlap = agreed = 0.0
        for depth in range(_DEPTH):
            chunks = [Chunk(slot, [tokens[depth]]) for slot, tokens, _ in self._starts]
            rows = draft.forward(chunks, self._cache).logits
            for row, (_, _, target_probs) in zip(rows, self._starts, strict=True):
                draft_probs = softmax(row[-1])  # [vocab]
                overlap += float(np.minimum(draft_probs, target_probs[depth]).sum())
                agreed += float(draft_probs.argmax() == target_probs[depth].argmax())
        for slot, _, _ in self._starts:
            self._cache.keep(slot, self._cache.length(slot) - _DEPTH, [])
        tests = _DEPTH * len(self._starts)
        return agreed / tests, overlap / tests
