"""The suffix automaton against a search that tries every place, and the copy that is edited on the way."""

from random import Random
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.drafters.lookup.copying import EditedCopy
from outpace.drafters.lookup.suffix import Cursor, SuffixText
from outpace.drafters.lookup.trust import Trust

texts = st.lists(st.integers(0, 2), max_size=40)


def grown(tokens) -> SuffixText:
    text = SuffixText()
    for token in tokens:
        text.append(token)
    return text


def naive(text: list[int], wanted: list[int]) -> tuple[int, int]:
    """The longest suffix of ``wanted`` that occurs in ``text``, and the place after its latest occurrence."""
    for size in range(len(wanted), 0, -1):
        for end in range(len(text), size - 1, -1):
            if text[end - size : end] == wanted[-size:]:
                return size, end
    return 0, 0


def test_the_worked_example():
    text = grown([5, 6, 7, 5, 6])
    assert (text.matched, text.place, text.tokens[text.place :]) == (2, 2, [7, 5, 6])
    for token, expected in ((7, (3, 3)), (9, (0, 0))):
        text = grown([5, 6, 7, 5, 6, token])
        assert (text.matched, text.place if text.matched else 0) == expected


@given(texts)
def test_longest_suffix_and_latest_place(tokens):
    text = SuffixText()
    for i, token in enumerate(tokens):
        text.append(token)
        assert (text.matched, text.place if text.matched else 0) == naive(tokens[:i], tokens[: i + 1])


@pytest.mark.parametrize("seed", range(3))
def test_a_cursor_reads_a_text_that_grows_meanwhile(seed):
    """What it gave up may occur later on; what it holds is right, and at its latest place."""
    random = Random(seed)
    for _ in range(100):
        text, read = SuffixText(), []
        cursor, size = Cursor(text), random.choice((2, 3))
        for token in (random.randrange(size) for _ in range(40)):
            if random.random() < 0.5:
                text.append(token)
                continue
            cursor.push(token)
            read.append(token)
            if cursor.matched:
                held = read[len(read) - cursor.matched :]
                assert (cursor.matched, cursor.place) == naive(text.tokens, held)


@given(texts, texts)
def test_a_cursor_finds_the_longest_and_the_latest(tokens, stream):
    cursor = Cursor(grown(tokens))
    for i, token in enumerate(stream):
        cursor.push(token)
        found = naive(tokens, stream[: i + 1])
        assert (cursor.matched, cursor.place if cursor.matched else 0) == found


@given(texts, texts)
def test_a_cursor_goes_on_behind_the_text_itself(tokens, path):
    """Hypothetical tokens behind the text: matches may not begin with them, but end before the text's end."""
    text = grown(tokens)
    cursor = text.cursor()
    for i, token in enumerate(path):
        cursor.push(token)
        size = cursor.matched
        whole = [*tokens, *path[: i + 1]]
        assert naive(tokens, whole[len(whole) - size :])[0] == size


def test_amortized_constant_time():
    """Eight times the tokens take about eight times as long, whatever the text; a quadratic way would take 64."""
    for tokens in ([7] * 40_000, list(range(9)) * 4_500, [i * i % 97 for i in range(40_000)]):
        seconds = []
        for size in (5_000, 40_000):
            start = perf_counter()
            grown(tokens[:size])
            seconds.append(perf_counter() - start)
        assert seconds[1] < 40 * seconds[0]


def follow(source, output, **options):
    """Which tokens of the output a copy of the source expected."""
    copy, expected = EditedCopy(source, **options), []
    for token in output:
        expected.append(copy.continuation(1) == [token])
        copy.push(token)
    return expected, copy


SOURCE = list(range(100, 160))


def test_an_exact_copy_is_expected_whole_and_then_nothing():
    expected, copy = follow(SOURCE, SOURCE)
    assert all(expected) and copy.run == 60 and copy.continuation(3) == []


@pytest.mark.parametrize(
    ("output", "missed"),
    [
        ([*SOURCE[:20], 7, *SOURCE[21:]], 1),  # one replaced by one: the next is expected at once
        ([*SOURCE[:20], 7, 8, 9, *SOURCE[20:]], 4),  # inserted: one token more to see where it goes on
        ([*SOURCE[:20], *SOURCE[24:]], 1),  # deleted
        ([*SOURCE[:20], *SOURCE[50:]], 2),  # a long piece deleted: two tokens to be sure
        ([*SOURCE[:20], 7, 8, *SOURCE[21:]], 3),  # one replaced by two
        ([*SOURCE[:20], 7, *SOURCE[23:]], 2),  # three replaced by one
    ],
)
def test_finds_its_place_again_behind_an_edit(output, missed):
    expected, copy = follow(SOURCE, output)
    assert len(output) - sum(expected) == missed
    assert copy.lost == 0 and copy.place == len(SOURCE)


def test_a_replacement_is_learnt_once():
    """A name of two tokens becomes one of three: only its first occurrence is missed."""
    line = [1, 50, 51, 2, 3]
    source = [token for i in range(10) for token in (*line, 200 + i, 201 + i, 202 + i)]
    output = [token for i in range(10) for token in (1, 60, 61, 62, 2, 3, 200 + i, 201 + i, 202 + i)]
    expected, _ = follow(source, output)
    assert all(expected[9:])
    assert sum(expected[:9]) >= 5


def test_a_replacement_that_does_not_hold_is_given_up():
    source = [token for i in range(6) for token in (1, 50, 2, 3, 4, 300 + i)]
    output = [*source[:1], 60, *source[2:]]  # replaced in the first place only
    expected, _ = follow(source, output)
    assert [i for i, ok in enumerate(expected) if not ok] == [1, 7]


def test_a_wrong_resumption_is_corrected_from_where_they_parted():
    """A line like the next one is inserted: its `=` and line end look like the way back, and are not."""
    lines = [[10 + i, 1, 30 + i, 2] for i in range(8)]
    source = [token for line in lines for token in line]
    output = [token for line in (*lines[:3], [77, 1, 78, 2], *lines[3:]) for token in line]
    expected, copy = follow(source, output)
    assert copy.place == len(source)
    assert all(expected[18:])


def test_trust_begins_with_the_agreement_and_then_learns():
    trust = Trust()
    assert [round(trust.chance(m), 2) for m in (0, 1, 3, 17)] == [0.33, 0.5, 0.67, 0.9]
    assert Trust(head_start=4).chance(0) == 5 / 7
    for _ in range(50):
        trust.learn(3, False)
    assert trust.chance(3) < 0.05 and trust.chance(4) > 0.6
    for _ in range(100):
        trust.learn(3, True)
    assert trust.chance(3) > 0.7  # what was long ago weighs little


def test_how_far_to_draft():
    trust = Trust()
    found = trust.chances(20, 100, 0.2)
    assert 10 < len(found) < 100 and found == pytest.approx(list(chances(trust, 20, len(found))))
    assert len(trust.chances(1, 100, 0.2)) < len(found)
    assert len(trust.chances(20, 5, 0.2)) == 5 and trust.chances(20, 5, 0.99) == []


def chances(trust, agreed, size):
    path = 1.0
    for i in range(size):
        path *= trust.chance(agreed + i)
        yield path
