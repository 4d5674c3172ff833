"""Log-probabilities are the model's own, whatever the pipeline does to the row."""

import math
import tracemalloc

import numpy as np
import pytest

from outpace.sampling.logprobs import LogprobLog, token_logprobs


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_against_the_definition(dtype):
    row = (np.random.default_rng(2).standard_normal(500) * 3).astype(dtype)
    total = math.log(sum(math.exp(float(x)) for x in row))
    found = token_logprobs(row, 17, 5)
    assert found.token == 17
    assert found.logprob == pytest.approx(float(row[17]) - total, abs=1e-4)
    best = sorted(range(500), key=lambda i: (-float(row[i]), i))[:5]
    assert [token for token, _ in found.top] == best
    assert [prob for _, prob in found.top] == pytest.approx([float(row[i]) - total for i in best], abs=1e-4)


def test_ties_go_to_the_lower_id_and_none_may_be_asked_for():
    row = np.array([1.0, 2.0, 2.0, 2.0], dtype=np.float32)
    assert [token for token, _ in token_logprobs(row, 0, 2).top] == [1, 2]
    assert token_logprobs(row, 0, 0).top == []
    assert len(token_logprobs(row, 0, 9).top) == 4


def test_an_impossible_token_says_so():
    assert token_logprobs(np.array([0.0, -np.inf], dtype=np.float32), 1, 1).logprob == -math.inf


def test_a_log_gives_back_what_it_took_in_a_tenth_of_the_memory():
    rows = np.random.default_rng(3).standard_normal((300, 50), dtype=np.float32)
    taken, log = [], LogprobLog()
    tracemalloc.start()
    for i, row in enumerate(rows):
        log.append(token_logprobs(row, i % 50, i % 21))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    taken = [token_logprobs(row, i % 50, i % 21) for i, row in enumerate(rows)]
    assert held < 300 * (32 + 12 * 10 * 1.5)
    assert log.between(0, 1000) == taken
    assert log.between(17, 40) == taken[17:40] and log.between(300, 310) == []
