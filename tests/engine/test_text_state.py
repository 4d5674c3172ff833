"""Stop strings and streaming, whatever the tokens look like."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.engine.text_state import TextState


class Pieces:
    """A detokenizer of a script: token i is the i-th piece, ``last`` comes at the end."""

    def __init__(self, pieces, last=""):
        self.pieces, self.last = pieces, last

    def push(self, token):
        return self.pieces[token]

    def held(self):
        return self.last

    def flush(self):
        last, self.last = self.last, ""
        return last


class Utf8:
    """One byte a token; nothing until a character is whole."""

    def __init__(self):
        self.bytes = b""

    def push(self, token):
        self.bytes += bytes([token])
        try:
            text, self.bytes = self.bytes.decode(), b""
        except UnicodeDecodeError:
            return ""
        return text

    def flush(self):
        left, self.bytes = self.bytes, b""
        return left.decode(errors="replace")


def run(pieces, stops, every=1, last=""):
    """Final text, tokens of the answer, streamed pieces, streamed token counts."""
    state = TextState(Pieces(pieces, last), stops)
    shown = []
    for token in range(len(pieces)):
        stopped = state.push(token)
        if stopped:
            break
        if token % every == every - 1:
            shown.append(state.take())
    state.finish()
    shown.append(state.take(final=True))
    return state.text, state.tokens, [text for text, _ in shown], [count for _, count in shown]


def splits(text):
    for size in range(len(text)):
        for cuts in combinations(range(1, len(text)), size):
            yield [text[a:b] for a, b in zip((0, *cuts), (*cuts, len(text)), strict=True)]


@pytest.mark.parametrize("every", [1, 3])
def test_stop_string_split_in_every_way_is_never_shown(every):
    """B36, B18."""
    for pieces in splits("a\nUser:b"):
        text, tokens, shown, counts = run(pieces, ("\nUser:",), every)
        assert text == "".join(shown) == "a"
        assert tokens == sum(counts) == 1  # the token that holds the a, straddling or not


def test_held_text_is_released_when_the_match_fails():
    for pieces in splits("a\nUse the"):
        text, tokens, shown, counts = run(pieces, ("\nUser:",))
        assert text == "".join(shown) == "a\nUse the"
        assert tokens == sum(counts) == len(pieces)


def test_no_more_is_held_back_than_needed():
    state = TextState(Pieces(["xa", "b", "y", "abc"]), ("abd", "bcz"))
    shown = []
    for token in range(4):
        assert not state.push(token)
        shown.append(state.take()[0])
    assert shown == ["x", "", "aby", "a"]  # of the last "abc" only "bc" may still become a stop string
    state.finish()
    assert state.take(final=True) == ("bc", 1)


def test_ambiguous_end_is_shown_at_the_end():
    assert run(["x", "ab"], ("abc",))[0] == "xab"


@pytest.mark.parametrize(("text", "kept"), [("xabcd", "x"), ("xbcd", "x"), ("xacbcd", "xac"), ("bcab", "bc")])
def test_overlapping_stops_do_not_depend_on_the_split(text, kept):
    for pieces in splits(text):
        final, _, shown, _ = run(pieces, ("ab", "abc", "bcd"))
        assert final == "".join(shown) == kept


@pytest.mark.parametrize("stops", [("c", "bcd"), ("bcd", "c")])
def test_the_stop_string_that_is_complete_first_wins(stops):
    for pieces in splits("abcd"):
        assert run(pieces, stops)[0] == "ab"


def test_earlier_of_two_stops_in_one_run_and_first_occurrence():
    """B17: only the first counts, wherever it is in a long run."""
    for place in range(17):
        pieces = ["."] * place + ["<", ">", ".", "<", ">", "#"]
        text, tokens, _, _ = run(pieces, ("#", "<>"), every=100)
        assert text == "." * place
        assert tokens == place


def test_stop_at_the_very_beginning_leaves_nothing():
    assert run(["<>", "x"], ("<>",)) == ("", 0, [""], [0])


def test_stop_within_what_the_decoder_gives_at_the_end():
    assert run(["ab"], ("#",), last="c#d")[:2] == ("abc", 1)


def test_no_tokens():
    assert run([], ("x",)) == ("", 0, [""], [0])


def test_finishing_twice_changes_nothing():
    state = TextState(Pieces(["a"], "b"), ())
    state.push(0)
    state.finish()
    state.finish()
    assert state.text == "ab"


def test_tokens_of_an_unfinished_character_wait_with_it():
    """The bytes before a stop string's character are not announced and then taken back."""
    state = TextState(Utf8(), ("€",))
    shown = [state.take() for byte in "ab€".encode() if not state.push(byte)]
    state.finish()
    shown.append(state.take(final=True))
    assert "".join(text for text, _ in shown) == state.text == "ab"
    assert sum(count for _, count in shown) == state.tokens == 2


@given(
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    st.integers(1, 4),
    st.text("abc", max_size=2),
)
def test_stream_is_the_final_text(pieces, stops, every, last):
    text, tokens, shown, counts = run(pieces, stops, every, last)
    assert "".join(shown) == text
    assert sum(counts) == tokens <= len(pieces)
    assert not any(stop in text for stop in stops)
    whole = "".join(pieces) + last
    ends = sorted((whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole)
    assert text == (whole[: ends[0][1]] if ends else whole)


# ---- stop strings that name special tokens

NAMES = {100: "<|a|>", 101: "<|b|>", 102: "<|a"}


class Hidden(Pieces):
    """Special tokens add no text."""

    def push(self, token):
        return "" if token in NAMES else self.pieces[token]


def run_named(tokens, stops, pieces="xyz"):
    """Text, tokens and streamed pieces of an answer of these tokens; whether it stopped."""
    state, shown, stopped = TextState(Hidden(pieces), stops, NAMES), [], False
    for token in tokens:
        stopped = state.push(token)
        shown.append(state.take())
        if stopped:
            break
    state.finish()
    shown.append(state.take(final=True))
    assert "".join(text for text, _ in shown) == state.text
    assert sum(count for _, count in shown) == state.tokens
    return state.text, state.tokens, stopped


@pytest.mark.parametrize(
    ("tokens", "stops", "expected"),
    [
        ([0, 100, 1], ["<|a|>"], ("x", 1, True)),
        ([100, 1], ["<|a|>"], ("", 0, True)),
        ([0, 101, 100, 1], ["<|a|>"], ("x", 1, True)),  # others before it
        ([0, 101, 1], ["<|a|>"], ("xy", 3, False)),
        ([0, 1, 100, 2], ["y<|a|>"], ("x", 1, True)),
        ([0, 1, 101, 100, 2], ["y<|a|>"], ("xyz", 5, False)),  # another one between
        ([0, 100, 1, 2], ["<|a|>y"], ("x", 1, True)),
        ([0, 100, 2, 1], ["<|a|>y"], ("xzy", 4, False)),
        ([0, 100, 1, 2], ["<|a|>yz"], ("x", 1, True)),  # y waits, for it may belong to the stop string
        ([0, 100, 1, 101, 2], ["x<|a|>y<|b|>"], ("", 0, True)),
        ([0, 100, 101], ["<|a|><|b|>"], ("x", 1, True)),
        ([0, 102, 100], ["<|a|>"], ("x", 1, True)),  # the longer of two names
        ([0, 102, 1], ["<|a"], ("x", 1, True)),
        ([0, 100, 1], ["|a|"], ("xy", 3, False)),  # a part of a name is text, and this text is not there
        ([0, 100, 1], ["xy"], ("", 0, True)),  # text on both sides of a special token is one text
        ([0, 1, 100], ["y", "<|a|>"], ("x", 1, True)),
        ([0, 1, 100], ["<|a|>", "xy<|a|>"], ("", 0, True)),  # complete together: the longer one
    ],
)
def test_stop_strings_with_names_of_special_tokens(tokens, stops, expected):
    text, count, stopped = run_named(tokens, stops)
    assert (text, stopped) == (expected[0], expected[2])
    assert count == expected[1] or not stopped


def test_a_name_that_is_written_as_text_stops_too():
    assert run_named([0, 1, 2], ["x<|a|>"], ["q", "x<|", "a|>"]) == ("q", 1, True)


def test_text_that_the_decoder_holds_stands_before_the_special_token():
    """As a line end that is a byte token, which may yet turn out to be broken."""
    for stops, expected in [(["<|a|>"], ("x\n", 2)), (["\n<|a|>"], ("x", 1))]:
        state = TextState(Hidden(["x", ""]), stops, NAMES)
        state.push(0)
        state.push(1)
        state._decoder.last = "\n"
        assert state.push(100)
        state.finish()
        assert (state.text, state.tokens) == expected
        assert state.take(final=True) == expected


@given(
    st.lists(st.sampled_from([0, 1, 2, 100, 101]), max_size=10),
    st.lists(st.lists(st.sampled_from(["x", "y", "<|a|>", "<|b|>"]), min_size=1, max_size=3).map("".join), max_size=3),
)
def test_names_stop_where_a_search_in_the_written_text_stops(tokens, stops):
    """A stop string that is found with the special tokens written out stops there; nothing of it is shown."""
    text, _, stopped = run_named(tokens, stops)
    written = ["xyz"[t] if t < 3 else NAMES[t] for t in tokens]
    for place in range(len(tokens) + 1):
        prefix, plain = "".join(written[:place]), "".join(w for w in written[:place] if len(w) == 1)
        ends = [s for s in stops if s in prefix or s in plain]
        if ends:
            cuts = [("".join(w for w in written[:i] if len(w) == 1)) for i in range(place + 1)]
            assert stopped and text in cuts and all(s not in text for s in stops)
            return
    assert not stopped and text == "".join(w for w in written if len(w) == 1)
