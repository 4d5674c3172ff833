"""The black-box half of the audit, the same for every engine: greedy equality and the sampled distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from ...core.prefix_cache import shared_length
from ...core.types import Array, Chunk, softmax
from ...files.checkpoint import Checkpoint
from ...runtimes.loading import LoadedModel, load_model
from .distributions import Evidence, Prefix, Sample, against_distribution, two_samples
from .process import Draws

GREEDY_PROMPTS = (
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\ndef multiply(",
    "The cat sat on the mat. The dog sat on the mat. The bird sat on the",
    "Names: Anna, Ben, Carla, David. In reverse order the names are: David,",
    "Once upon a time there was a small village by the sea, where",
    "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n\n    def ",
    "| number | square |\n|---|---|\n| 1 | 1 |\n| 2 | 4 |\n| 3 | 9 |\n",
)
# Few tokens can follow, so few draws say much; and lookup always finds something to propose.
DISTRIBUTION_PROMPTS = ('bits = "0110100110010110100101100110100101101001',)
PLACES = (1, 2, 3)  # tokens after the prompt whose distribution is tested
DRAWN = len(PLACES) + 1  # one more is asked for, so that no tested token is the last of its answer
LEVEL = 1e-3  # false alarms of the sampled distribution, both tests of a mode together
SEEDS_A_REQUEST = 20


class Speaks(Protocol):
    """What a check needs of an engine: a :class:`process.Peer` has it."""

    def generate(self, prompt: Sequence[int], max_tokens: int, temperature: float, seeds: Sequence[int]) -> Draws:
        """An answer for each seed."""
        ...


@dataclass(frozen=True)
class Observed:
    """What one mode of an engine did: greedy answers, one a prompt, and samples ``(prompt, token 1, ...)``."""

    greedy: list[list[int]]
    samples: list[Sample]
    drafted: int | None
    accepted: int | None


@dataclass(frozen=True)
class Outcome:
    """One line of the table. ``differs``: for each greedy prompt, None where the tokens equal those of the engine's own
    plain decoding, else the first place (from 0) where they do not; ``gaps``: for each of those, by how much the
    float32 logit of plain's token exceeds the other's (near 0: a tie that rounding decides). ``first`` and ``later``:
    the distribution of the first token, and of the others given those before, tested ``against`` the float32
    distribution or the engine's own plain samples; a ``p_value`` below LEVEL / 2 in either rejects it. ``drafted``:
    during sampling; 0 means that the mode never had anything to verify, and that its test says nothing."""

    engine: str
    mode: str
    versions: dict[str, str] = field(default_factory=dict)
    numerics: str = ""
    differs: list[int | None] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    draws: int = 0
    drafted: int | None = None
    accepted: int | None = None
    against: str = ""
    first: Evidence | None = None
    later: Evidence | None = None
    error: str | None = None

    @property
    def rejected(self) -> bool:
        """Whether the samples contradict the distribution."""
        tests = [test.p_value for test in (self.first, self.later) if test is not None]
        return any(p is not None and p < LEVEL / 2 for p in tests)

    @property
    def passed(self) -> bool:
        """Whether nothing was found: it ran, greedy answers are equal, and the distribution is not contradicted."""
        return self.error is None and not self.rejected and all(place is None for place in self.differs)


def observe(
    engine: Speaks, checkpoint: Checkpoint, *, tokens: int, draws: int, seconds: float, first_seed: int
) -> Observed:
    """Ask one mode for its greedy answers and for samples at temperature 1: ``draws``, or as many as ``seconds`` allow.

    That time may end the sampling does not bend the test, as no token's value has a say in it.
    """
    ends = checkpoint.end_tokens
    greedy = []
    for text in GREEDY_PROMPTS:
        answer = engine.generate(_ids(checkpoint, text), tokens, 0.0, [0])
        greedy.append(canonical(answer.tokens[0], ends, tokens))
    samples: list[Sample] = []
    drafted: int | None = 0
    accepted: int | None = 0
    prompts = [_ids(checkpoint, text) for text in DISTRIBUTION_PROMPTS]
    stop = perf_counter() + seconds
    while len(samples) < draws and perf_counter() < stop:
        for number, prompt in enumerate(prompts):
            begin = first_seed + len(samples)
            answer = engine.generate(prompt, DRAWN, 1.0, range(begin, begin + SEEDS_A_REQUEST))
            samples += [(number, *canonical(drawn, ends, DRAWN)) for drawn in answer.tokens]
            drafted = None if drafted is None or answer.drafted is None else drafted + answer.drafted
            accepted = None if accepted is None or answer.accepted is None else accepted + answer.accepted
    return Observed(greedy, samples, drafted, accepted)


def canonical(tokens: Sequence[int], ends: frozenset[int], wanted: int) -> list[int]:
    """An answer up to its end: all end tokens become one (the least), which engines that hide it get back."""
    kept: list[int] = []
    for token in tokens[:wanted]:
        if token in ends:
            return [*kept, min(ends)]
        kept.append(token)
    return [*kept, min(ends)] if len(kept) < wanted and ends else kept


def first_differing(answer: Sequence[int], plain: Sequence[int]) -> int | None:
    """The first place where two answers differ, None when they are equal."""
    place = shared_length(answer, plain)
    return None if place == len(answer) == len(plain) else place


class Float32:
    """The exact distribution of a model at temperature 1: our torch runtime in float32, the slow twin of everything
    else, loaded when it is first needed. A call with ``(prompt, token 1, ...)`` gives ``[vocab_size]`` float64
    probabilities, where end tokens count as the least of them, as in :func:`canonical`."""

    def __init__(self, path: str, checkpoint: Checkpoint) -> None:
        self._path, self._checkpoint = path, checkpoint
        self._model: LoadedModel | None = None
        self._known: dict[Prefix, Array] = {}

    def logits(self, ids: Sequence[int]) -> Array:
        """``[vocab_size]`` float32: those after these tokens, from one pass over all of them."""
        if self._model is None:
            self._model = load_model(self._path, weights="f32", backend="torch")
        runtime = self._model.runtime
        cache = runtime.new_cache()
        chunk = Chunk(cache.open(len(ids)), list(ids), logits_from=len(ids) - 1)
        return runtime.forward([chunk], cache).logits[0][-1]

    def __call__(self, prefix: Prefix) -> Array:
        if prefix not in self._known:
            ids = [*_ids(self._checkpoint, DISTRIBUTION_PROMPTS[prefix[0]]), *prefix[1:]]
            probs = softmax(self.logits(ids).astype(np.float64))  # [vocab_size]
            ends = sorted(self._checkpoint.end_tokens)
            if ends:
                merged = probs[ends].sum()
                probs[ends] = 0
                probs[ends[0]] = merged
            self._known[prefix] = probs
        return self._known[prefix]

    def gap(self, text: str, plain: Sequence[int], answer: Sequence[int], place: int) -> float:
        """By how much the logit of plain's token at ``place`` exceeds that of the other answer's."""
        logits = self.logits([*_ids(self._checkpoint, text), *plain[:place]])
        return float(logits[plain[place]] - logits[answer[place]])


def judge(
    engine: str, mode: str, ready: Mapping[str, object], seen: Observed, plain: Observed, exact: Float32
) -> Outcome:
    """Compare a mode with the engine's plain decoding, and its samples with the exact distribution where the engine
    computes in float32, or else with its own plain samples: those of rounded numbers follow another distribution, which
    nobody knows.

    Mode "plain" against the exact distribution is the control: it says that the distribution is the right one.
    """
    tests: list[Evidence] = []
    known = ready.get("numerics") == "float32"
    for places in (PLACES[:1], PLACES[1:]):
        if known:
            tests.append(against_distribution(seen.samples, exact, places, LEVEL / 2))
        elif seen is not plain:
            tests.append(two_samples(seen.samples, plain.samples, places, LEVEL / 2))
    differs = [first_differing(a, b) for a, b in zip(seen.greedy, plain.greedy, strict=True)]
    versions = ready.get("versions")
    return Outcome(
        engine=engine,
        mode=mode,
        versions=versions if isinstance(versions, dict) else {},
        numerics=str(ready.get("numerics", "")),
        differs=differs,
        gaps=[
            exact.gap(text, right, left, place)
            for text, left, right, place in zip(GREEDY_PROMPTS, seen.greedy, plain.greedy, differs, strict=True)
            if place is not None and place < min(len(left), len(right))
        ],
        tokens=sum(len(answer) for answer in seen.greedy),
        draws=len(seen.samples),
        drafted=seen.drafted,
        accepted=seen.accepted,
        against="" if not tests else "the float32 distribution" if known else "its own plain",
        first=tests[0] if tests else None,
        later=tests[1] if tests else None,
    )


def _ids(checkpoint: Checkpoint, text: str) -> list[int]:
    return checkpoint.tokenizer.encode(text, add_special=False)
