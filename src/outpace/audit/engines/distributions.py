"""Do sampled tokens follow a distribution? Chi-square tests, conditional on what came before.

A sample is a tuple ``(prompt, token 1, token 2, ...)``. All samples that begin alike, with the same prompt and the same
tokens, are one stratum: what they go on with is independent draws from one distribution, whose probabilities are known
or are those of another set of samples. Each stratum gives a chi-square statistic; their sum, with the sum of their
degrees of freedom, gives one p-value for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.types import Array

Sample = tuple[int, ...]
Prefix = tuple[int, ...]

MIN_VISITS = 50  # a stratum with fewer samples says too little
MIN_EXPECTED = 5.0  # in a bin of a known distribution; Cochran's rule for the chi-square approximation
MIN_POOLED = 10  # in a bin of two samples together


@dataclass(frozen=True)
class Evidence:
    """A test's outcome. ``p_value``: of a chi-square at least as large, were the distributions equal; None when no
    stratum had enough samples. ``detectable``: were the distribution off by this total variation distance in every
    stratum (whatever its direction), the test would say so with 90% probability at the level given; None when not
    even 1 would do."""

    chi_square: float
    degrees: int
    p_value: float | None
    strata: int
    draws: int
    detectable: float | None


def against_distribution(
    samples: Sequence[Sample], distribution: Callable[[Prefix], Array], places: Iterable[int], level: float
) -> Evidence:
    """Tokens at ``places`` (1: the first after the prompt) against ``distribution(prefix)``, ``[vocab_size]``
    probabilities."""
    total, degrees, strata, draws = 0.0, 0, 0, 0
    for prefix, counts in _strata(samples, places, MIN_VISITS).items():
        visits = sum(counts.values())
        expected = distribution(prefix).astype(np.float64) * visits  # [vocab_size]
        kept = np.flatnonzero(expected >= MIN_EXPECTED).tolist()
        observed_bins = [float(counts[token]) for token in kept]
        expected_bins = [float(expected[token]) for token in kept]
        rest = visits - sum(expected_bins)
        observed_rest = visits - sum(observed_bins)
        if rest >= MIN_EXPECTED or not kept:
            observed_bins.append(observed_rest)
            expected_bins.append(rest)
        else:  # too rare for a bin of its own: it joins the rarest
            least = min(range(len(kept)), key=expected_bins.__getitem__)
            observed_bins[least] += observed_rest
            expected_bins[least] += rest
        if len(observed_bins) < 2:
            continue
        total += sum((o - e) ** 2 / e for o, e in zip(observed_bins, expected_bins, strict=True))
        degrees += len(observed_bins) - 1
        strata += 1
        draws += visits
    return _evidence(total, degrees, strata, draws, draws, level)


def two_samples(first: Sequence[Sample], second: Sequence[Sample], places: Iterable[int], level: float) -> Evidence:
    """Tokens at ``places`` of two sets of samples against each other: do both come from one distribution, whichever
    it is?"""
    places = list(places)
    total, degrees, strata, draws, information = 0.0, 0, 0, 0, 0.0
    left, right = _strata(first, places, MIN_VISITS), _strata(second, places, MIN_VISITS)
    for prefix in left.keys() & right.keys():
        sizes = (sum(left[prefix].values()), sum(right[prefix].values()))
        pooled = left[prefix] + right[prefix]
        kept = [token for token, count in pooled.items() if count >= MIN_POOLED]
        table = [(left[prefix][token], right[prefix][token]) for token in kept]
        rest = (sizes[0] - sum(a for a, _ in table), sizes[1] - sum(b for _, b in table))
        others = rest[0] + rest[1]
        if others >= MIN_POOLED or (others and not table):
            table.append(rest)
        elif others:
            least = min(range(len(table)), key=[a + b for a, b in table].__getitem__)
            table[least] = (table[least][0] + rest[0], table[least][1] + rest[1])
        if len(table) < 2:
            continue
        whole = sum(sizes)
        for row in table:
            for seen, size in zip(row, sizes, strict=True):
                mean = sum(row) * size / whole
                total += (seen - mean) ** 2 / mean
        degrees += len(table) - 1
        strata += 1
        draws += whole
        information += sizes[0] * sizes[1] / whole
    return _evidence(total, degrees, strata, draws, information, level)


def _strata(samples: Sequence[Sample], places: Iterable[int], least: int) -> dict[Prefix, Counter[int]]:
    """What followed each prefix that ends just before one of ``places``, of prefixes seen ``least`` times."""
    found: dict[Prefix, Counter[int]] = {}
    for place in places:
        for sample in samples:
            if len(sample) > place:
                found.setdefault(sample[:place], Counter())[sample[place]] += 1
    return {prefix: counts for prefix, counts in found.items() if sum(counts.values()) >= least}


def _evidence(total: float, degrees: int, strata: int, draws: int, information: float, level: float) -> Evidence:
    if not degrees:
        return Evidence(0.0, 0, None, 0, draws, None)
    p_value = _survival(total, degrees)
    return Evidence(total, degrees, p_value, strata, draws, _detectable(degrees, information, level))


def _survival(value: float, degrees: float) -> float:
    """P(chi-square with these degrees of freedom > value)."""
    return _upper_gamma(degrees / 2, value / 2)


def _upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x), for a > 0 and x >= 0: by the series of 1 - Q below
    x = a + 1, by Lentz's continued fraction above (DLMF 8.7.1 and 8.9.2)."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return 1 - scale * total
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    found = d
    for i in range(1, 100_000):
        numerator, b = -i * (i - a), b + 2
        d = 1 / (numerator * d + b or tiny)
        c = b + numerator / c or tiny
        found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * found


def _power(noncentrality: float, degrees: int, critical: float) -> float:
    """P(noncentral chi-square > critical): a Poisson mixture of central ones."""
    mean = noncentrality / 2
    spread = 10 * (mean**0.5 + 1)
    x, counts = critical / 2, range(max(0, int(mean - spread)), int(mean + spread) + 1)
    tail, total = _upper_gamma(degrees / 2 + counts[0], x), 0.0
    for k in counts:
        total += tail * math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
        a = degrees / 2 + k
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))  # Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1)
    return total


def _detectable(degrees: int, information: float, level: float, power: float = 0.9) -> float | None:
    """The distance d whose noncentrality reaches the power. By Cauchy-Schwarz, sum (p' - p)^2 / p >= (sum |p' - p|)^2 =
    4 d^2 for distributions at total variation distance d, so that ``information`` draws give at least 4 d^2 times as
    much."""
    critical = _bisect(lambda x: _survival(x, degrees) - level, 0.0, 10.0 * degrees + 200.0)
    needed = _bisect(lambda x: power - _power(x, degrees, critical), 1e-6, 10.0 * degrees + 500.0)
    distance = (needed / (4 * information)) ** 0.5
    return distance if distance < 1 else None


def _bisect(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero."""
    for _ in range(40):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return high
