"""The naive twin of the engine: no cache, batch or draft, one token at a time, the whole text searched for its end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core.protocols import Runtime
from ..core.types import Array, Chunk, Distribution, SamplingParams
from ..kernels.sampling import Sampler
from ..runtimes.loading import LoadedModel
from ..sampling.grammar import Grammars
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import KeyedRandomSource


@dataclass(frozen=True)
class Answer:
    """What an engine should say: see :class:`outpace.engine.engine.Result`."""

    text: str
    token_ids: list[int]
    finish_reason: str | None  # None: not ended yet


class Oracle:
    """Answers of one model. Remembers the last row of logits of every text it has run."""

    def __init__(self, model: LoadedModel, sampler: Sampler | None) -> None:
        self._model, self._sampler = model, sampler
        self._rows: dict[tuple[int, ...], Array] = {}
        self._grammars = Grammars(model.tokenizer, model.end_tokens)

    def logits(self, tokens: Sequence[int]) -> Array:
        """``[vocab_size]`` after the whole of ``tokens``, run from the first token in a fresh cache."""
        key = tuple(tokens)
        if key not in self._rows:
            runtime: Runtime = self._model.runtime
            cache = runtime.new_cache()
            chunk = Chunk(cache.open(len(key)), list(key), logits_from=len(key) - 1)
            self._rows[key] = runtime.forward([chunk], cache).logits[0][0].copy()
        return self._rows[key]

    def distribution(self, tokens: Sequence[int], params: SamplingParams, prompt_length: int = 0) -> Distribution:
        """The target's distribution after ``tokens``, of which the first ``prompt_length`` are the prompt."""
        return Pipeline(params, prompt_length, grammars=self._grammars).distribution(self.logits(tokens), tokens)

    def answer(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """Plain decoding under ``match``."""
        rng = KeyedRandomSource(params.seed or 0, sampler=self._sampler)
        tokens: list[int] = []
        while (ended := self.ended(prompt, tokens, params)).finish_reason is None:
            text = [*prompt, *tokens]
            tokens.append(rng.gumbel_argmax(len(text), self.distribution(text, params, len(prompt))))
        return ended

    def ended(self, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams) -> Answer:
        """How these tokens end, if they do: at the first stop string, the last token or the limit."""
        text = self._model.tokenizer.decode(tokens)
        cut = first_stop(text, params.stop)
        if cut is not None:
            needed = next(n for n in range(len(tokens) + 1) if len(self._model.tokenizer.decode(tokens[:n])) >= cut)
            return Answer(text[:cut], list(tokens[:needed]), "stop")
        reason = None
        if tokens and tokens[-1] in self.ends(params):
            reason = "stop"
        elif len(prompt) + len(tokens) >= self.limit(prompt, params):
            reason = "length"
        return Answer(text, list(tokens), reason)

    def ends(self, params: SamplingParams) -> Collection[int]:
        """The tokens that end an answer."""
        return {*(() if params.ignore_eos else self._model.end_tokens), *params.stop_token_ids}

    def limit(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """The most tokens that prompt and answer may have together."""
        context = self._model.runtime.context
        return context if params.max_tokens is None else min(context, len(prompt) + params.max_tokens)


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the text is cut: before the stop string that is complete first."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return min(found)
    return None
