"""What is expected of an answer's length, from those that ended."""

import pytest

from outpace.control.answer_lengths import AnswerLengths


def expected(lengths, done, most=10**6):
    return sum(chance * tokens for chance, tokens in lengths.remaining(done, most))


def test_chances_are_chances_and_respect_the_limit():
    lengths = AnswerLengths()
    for done in (0, 7, 40, 511, 512, 9000):
        found = lengths.remaining(done, 100)
        assert sum(chance for chance, _ in found) == pytest.approx(1)
        assert all(1 <= tokens <= 100 for _, tokens in found)


def test_what_has_lasted_lasts():
    lengths = AnswerLengths()
    assert expected(lengths, 100) > expected(lengths, 0)
    assert lengths.remaining(3000, 10**6) == [(1.0, 3000)]


def test_it_follows_the_answers_that_end():
    lengths = AnswerLengths()
    for _ in range(64):
        lengths.add(12)
    assert expected(lengths, 0) < 20
    assert expected(lengths, 12) > 60  # longer than all of them: another kind of answer
    for _ in range(64):
        lengths.add(400)
    assert expected(lengths, 0) > 350
