"""Lookup against a search that tries every place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.toys import GREEDY, MATCH, decode, plain, remembered, session

from outpace.audit.toy import hashed_logits
from outpace.core.errors import ParameterError
from outpace.drafters.lookup import Config, Lookup, SuffixMatches
from outpace.sampling.coins import KeyedCoins


def naive(text: list[int]) -> tuple[int, int]:
    """Longest suffix that occurs earlier, and the place after its latest occurrence; (0, 0) if none does."""
    for size in range(len(text) - 1, 0, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                return size, end
    return 0, 0


@given(st.lists(st.integers(0, 2), max_size=40))
def test_longest_suffix_and_latest_place(text):
    matches = SuffixMatches()
    for i, token in enumerate(text):
        matches.append(token)
        size, place = matches.longest()
        assert (size, place if size else 0) == naive(text[: i + 1])


def test_grows_beyond_its_first_allocation():
    text = [i % 300 for i in range(1300)]
    matches = SuffixMatches()
    for token in text:
        matches.append(token)
    assert matches.longest() == (1000, 1000)
    assert matches.continuation(1000, 400) == [i % 300 for i in range(100, 400)] + [i % 300 for i in range(100, 200)]


def propose(text, budget, **options):
    drafter, one = Lookup(Config(**options)), session(count=20, gamma=8, prompt=text)
    drafter.begin(one)
    return list(drafter.propose([one], [budget])[0].tokens)


def test_no_match_proposes_nothing():
    assert propose([1, 2, 3, 4], 8, min_match=1) == []
    assert propose([1, 2, 9, 1, 2], 8, min_match=3) == []
    assert propose([5], 8, min_match=1) == []


def test_proposes_what_followed_as_long_as_the_match():
    assert propose([1, 2, 3, 7, 8, 9, 4, 1, 2, 3], 8, min_match=3) == [7, 8, 9]
    assert propose([1, 2, 3, 7, 8, 9, 4, 1, 2, 3], 2, min_match=3) == [7, 8]
    assert propose([1, 2, 3, 7, 8, 9, 4, 1, 2, 3], 0, min_match=3) == []


def test_latest_of_equal_matches_wins():
    assert propose([1, 2, 5, 9, 1, 2, 6, 9, 8, 1, 2], 8, min_match=1) == [6, 9]


def test_a_text_in_a_loop_is_continued_beyond_its_end():
    assert propose([4, 4, 4, 4, 4], 8, min_match=1) == [4, 4, 4, 4]
    assert propose([1, 2, 1, 2, 1, 2], 3, min_match=1) == [1, 2, 1]


def test_generated_tokens_are_indexed_too():
    drafter, one = Lookup(Config(min_match=2)), session(count=20, gamma=8, prompt=[1, 2, 3])
    drafter.begin(one)
    assert len(drafter.propose([one], [8])[0]) == 0
    one.tokens += [9, 1, 2]
    assert drafter.propose([one], [8])[0].tokens == [3, 9]


def test_sessions_do_not_see_each_other():
    drafter = Lookup(Config(min_match=1))
    one, other = (session(i, count=9, gamma=8, prompt=prompt) for i, prompt in enumerate(([1, 2, 1], [1, 3, 1])))
    drafter.begin(one)
    drafter.begin(other)
    assert [p.tokens for p in drafter.propose([other, one], [8, 8])] == [[3], [2]]
    drafter.end(one)
    drafter.begin(one)  # a number that is used again begins anew
    one.tokens[:] = [7, 7]
    assert drafter.propose([one], [8])[0].tokens == [7]


@pytest.mark.parametrize("order", [1, 2])
def test_markers_and_loops_cost_time_at_most(order):
    """B59: repeated markers, nested brackets, long runs of one token; any minimum, any length."""
    target = remembered(hashed_logits(5, 8, order=order))
    for prompt in ([0, 1, 2, 0, 1, 2, 0, 1], [3] * 12, [0, 0, 1, 1, 0, 0, 1, 1, 0], [4, 3, 4, 4, 3, 4, 4, 4, 3]):
        expected = tuple(plain(target, KeyedCoins(0), GREEDY, prompt, 24))
        for min_match in range(1, 9):
            for gamma in (1, 2, 5, 32):
                drafter = Lookup(Config(gamma, min_match))
                assert decode(target, 5, drafter, MATCH, session(count=24, gamma=gamma, prompt=prompt)) == expected


def test_minimum_below_one_is_refused():
    with pytest.raises(ParameterError, match="min_match"):
        Config(min_match=0)
