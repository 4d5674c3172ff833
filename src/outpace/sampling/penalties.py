"""Logit bias and the three penalties, from counts that follow the prefix wherever it goes.

Presence and frequency penalties are OpenAI's: what is taken from a logit depends on how often its token was
generated. The repetition penalty is CTRL's (Keskar et al., arXiv 1909.05858, section 4.1) as Hugging Face's
transformers applies it: tokens of the prompt count too, and a negative logit is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.prefix_cache import shared_length
from ..core.types import Array, SamplingParams


class Penalties:
    """Adjusts rows of logits. Tokens from ``prompt_length`` on count as generated.

    Counts are kept for the prefix asked about last; the next one costs what it differs by. Whatever the
    order of questions, an answer is a function of logits and prefix alone.
    """

    def __init__(self, params: SamplingParams, prompt_length: int) -> None:
        self._params, self._prompt_length = params, prompt_length
        self._bias_ids = np.array(sorted(params.logit_bias), dtype=np.int64)
        self._bias = np.array([params.logit_bias[int(i)] for i in self._bias_ids], dtype=np.float64)
        self._counts = bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)
        self._tokens: list[int] = []
        self._columns: dict[int, int] = {}  # token id to its column
        self._table = np.zeros((3, 64), dtype=np.int64)  # id, times in the prefix, times generated

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether there is anything to adjust."""
        penalties = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        return bool(penalties or params.logit_bias)

    def adjust(self, logits: Array, prefix: Sequence[int]) -> Array:
        """A copy of ``logits`` ``[vocab_size]``, adjusted for the token after ``prefix``: bias, repetition
        penalty, frequency penalty, presence penalty. Ids beyond the row's end are left out."""
        row = logits.copy()
        inside = self._bias_ids < row.size
        row[self._bias_ids[inside]] += self._bias[inside].astype(row.dtype)
        if not self._counts:
            return row
        self._follow(prefix)
        table = self._table[:, : len(self._columns)]
        ids, seen, said = table[:, table[0] < row.size]
        params, values = self._params, row[ids]
        if params.repetition_penalty != 1:
            penalty = params.repetition_penalty
            scaled = np.where(values > 0, values / penalty, values * penalty)
            values = np.where(seen > 0, scaled, values)
        # Product and difference apart: fused, a vector's last lanes would round otherwise than its first.
        values = values - params.frequency_penalty * said.astype(row.dtype)
        row[ids] = values - params.presence_penalty * (said > 0).astype(row.dtype)
        return row

    def _follow(self, prefix: Sequence[int]) -> None:
        shared = shared_length(self._tokens, prefix)
        for place in range(shared, len(self._tokens)):
            self._count(place, self._tokens[place], -1)
        for place in range(shared, len(prefix)):
            self._count(place, prefix[place], 1)
        self._tokens[shared:] = prefix[shared:]

    def _count(self, place: int, token: int, change: int) -> None:
        column = self._columns.setdefault(token, len(self._columns))
        if column == self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
        self._table[0, column] = token
        self._table[1, column] += change
        if place >= self._prompt_length:
            self._table[2, column] += change
