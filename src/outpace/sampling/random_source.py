"""Keyed randomness: every random draw is a pure function of a seed and of what it is for.

The generator is Philox4x32-10 (Salmon et al., SC 2011): a counter in, four 32-bit words out. ``match``
noise is keyed by (seed, sample, position, token id), so that a token at a position meets the same noise
whichever round, draft or batch asks. The random numbers of ``ratio`` and ``block`` are keyed by (seed, sample,
round base, node, use): they look at random numbers of later positions and may discard them, so that a key by
position would use them again in the next round, knowing what they are.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ..core.types import USES, Array, Distribution, Key
from ..kernels.sampling import NoiseKey, Sampler

_MASK = 0xFFFFFFFF
_DENSE = 2048  # ids of a distribution from which on the lazy search over all ids up to the last is cheaper
_NOISE = len(USES)  # the tag of match noise; tags below it are the uses of random numbers keyed by round

Words = TypeVar("Words", int, "np.ndarray")


def philox(counter: tuple[Words, Words, Words, Words], seed: int) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10. ``counter``: four 32-bit words, as int or as uint64 arrays; ``seed``: 64 bits. Four alike."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def gumbel_noise(seed: int, sample: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise of token ``ids`` at a position: float64, from a 32-bit uniform in (0, 1)."""
    blocks, lanes = np.divmod(ids.astype(np.uint64), np.uint64(4))
    unique, inverse = np.unique(blocks, return_inverse=True)
    tail = [np.full_like(unique, value) for value in (position, sample, _NOISE)]
    words = np.stack(philox((unique, tail[0], tail[1], tail[2]), seed))  # [4, blocks]
    uniform = (words[lanes.astype(np.int64), inverse] + 0.5) * 2.0**-32
    return -np.log(-np.log(uniform))


def quantile(distribution: Distribution, uniform: float) -> int:
    """The token whose stretch of the cumulative distribution holds ``uniform``, a number in [0, 1)."""
    mass = np.cumsum(distribution.probs, dtype=np.float64)
    index = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    return distribution.token(min(index, mass.size - 1))


class KeyedRandomSource:
    """The random source of one request. ``sample`` numbers the answers drawn for one seed. ``sampler``: the C kernels,
    which make the same noise faster but round its logarithms otherwise; all random sources of a process should agree
    on it."""

    def __init__(self, seed: int, sample: int = 0, sampler: Sampler | None = None) -> None:
        self.seed, self.sample, self._sampler = seed, sample, sampler

    def uniform(self, key: Key) -> float:
        """A number in [0, 1) with 53 random bits."""
        words = (key.node & 0xFFFFFFFF, key.base, self.sample, USES.index(key.use))
        high, low, _, _ = philox(words, self.seed)
        return ((high << 21) | (low >> 11)) * 2.0**-53

    def bernoulli(self, key: Key, prob: float) -> bool:
        return self.uniform(key) < prob

    def categorical(self, key: Key, distribution: Distribution) -> int:
        if distribution.size == 1:
            return distribution.token(0)
        uniform = self.uniform(key)
        if self._sampler is None or distribution.dtype != np.float32:
            return quantile(distribution, uniform)
        if distribution.only_scores:  # probabilities of a whole vocabulary are never written down
            return distribution.token(self._sampler.quantile_of_scores(distribution.scores, uniform))
        return distribution.token(self._sampler.quantile(distribution.probs, uniform))

    def gumbel(self, position: int, ids: Array) -> Array:
        """The ``match`` noise of token ``ids`` at a position: ``[n]`` float64."""
        if self._sampler is not None:
            return self._sampler.gumbel(self._key(position), ids)
        return gumbel_noise(self.seed, self.sample, position, ids)

    def gumbel_argmax(self, position: int, distribution: Distribution) -> int:
        if distribution.size == 1:
            return distribution.token(0)
        scores = distribution.scores
        if self._sampler is not None and scores.dtype == np.float32:
            if distribution.ids is None:
                return self._sampler.perturbed_argmax(scores, 1.0, self._key(position))
            if distribution.size >= _DENSE:
                everyone = np.full(distribution.token(-1) + 1, -np.inf, dtype=np.float32)
                everyone[distribution.ids] = scores
                return self._sampler.perturbed_argmax(everyone, 1.0, self._key(position))
        ids = np.arange(distribution.size) if distribution.ids is None else distribution.ids
        return distribution.token(int(np.argmax(scores + self.gumbel(position, ids))))

    def _key(self, position: int) -> NoiseKey:
        return NoiseKey(seed=self.seed, position=position, sample=self.sample, tag=_NOISE)
