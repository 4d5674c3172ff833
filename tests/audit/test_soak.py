"""Random configurations on the tiny pair against the naive oracle: a few here, two thousand under ``make audit``."""

import pytest

from outpace.audit import soak
from outpace.audit.oracle import first_stop


def failures(seed, numbers):
    found = {number: soak.run_case(seed, number) for number in numbers}
    return [soak.failure(seed, number, wrong).line() for number, wrong in found.items() if wrong]


def test_some_configurations():
    assert failures(1, range(30)) == []


def test_the_cases_are_many_sided_and_repeatable():
    cases = [soak.case(0, number) for number in range(400)]
    assert cases[:5] == [soak.case(0, number) for number in range(5)] and cases[0] != soak.case(1, 0)
    assert {one.accept for one in cases} == {"match", "ratio", "block"}
    assert {one.drafter for one in cases} == set(soak.choices()[1])
    requests = [request for one in cases for request in one.requests]
    assert {len(one.requests) for one in cases} == {1, 2, 3, 4}
    assert any(request.cancel_after is not None for request in requests)
    assert any(len(request.prompt) == one.context for one in cases for request in one.requests)
    for name in ("temperature", "top_k", "top_p", "min_p", "max_tokens", "ignore_eos"):
        assert len({getattr(request.params, name) for request in requests}) > 1


@pytest.mark.parametrize(
    ("text", "stops", "cut"),
    [
        ("abcabc", ["c"], 2),
        ("abcabc", ["bc", "abc"], 0),
        ("abcd", ["cd", "bc"], 1),
        ("abc", [], None),
        ("abc", ["x"], None),
    ],
)
def test_the_oracles_own_stop_search(text, stops, cut):
    assert first_stop(text, stops) == cut
