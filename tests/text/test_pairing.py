"""Which pairs of vocabularies are let through (bugs B24 and B25), and what bridges others (B26)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.helpers.tiny_models import byte_level_tokenizer, metaspace_tokenizer

from outpace.core.errors import VocabularyError
from outpace.text.pairing import Encoder, TextOf, check_pair, seam, shared_tokens
from outpace.text.tokenizer import Tokenizer


@dataclass
class Words:
    words: list[str | None]

    @property
    def size(self) -> int:
        return len(self.words)

    def tokens(self) -> list[str | None]:
        return self.words


BASE = ["<s>", "</s>", *(f"w{i}" for i in range(1000)), "<|end|>"]


def changed(**places: str) -> Words:
    words: list[str | None] = list(BASE)
    for place, word in places.items():
        words[int(place[1:])] = word
    return Words(words)


def test_equal_vocabularies_pass() -> None:
    check_pair(Words(list(BASE)), Words(list(BASE)), "big", "small")
    check_pair(Tokenizer(byte_level_tokenizer()), Tokenizer(byte_level_tokenizer()), "big", "small")


def test_a_place_without_token_on_both_sides_passes() -> None:
    check_pair(Words([*BASE, None, "x"]), Words([*BASE, None, "x"]), "big", "small")


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (changed(_5="w4", _6="w3"), "id 5 is 'w3' in one and 'w4' in the other"),  # permuted
        (changed(_0="<bos>"), "id 0 is '<s>'"),  # only special tokens differ
        (changed(_1002="<|stop|>"), "id 1002 is"),
        (changed(_500="W498"), "id 500 is 'w498'"),  # one normal token differs
        (Words([*BASE, "more"]), "id 1003 is 'more' in small only"),
        (Words(BASE[:-1]), "id 1002 is '<|end|>' in big only"),
        (Words([*BASE[:-1], None]), "id 1002"),
        (Words([]), "id 0"),
    ],
)
def test_others_are_refused_with_sizes_and_the_first_id(draft: Words, words: str) -> None:
    with pytest.raises(VocabularyError) as caught:
        check_pair(Words(list(BASE)), draft, "big", "small")
    assert words in str(caught.value)
    assert "big has 1003 tokens" in str(caught.value) and f"small has {draft.size} tokens" in str(caught.value)


def test_real_tokenizers_of_different_kinds_are_refused() -> None:
    with pytest.raises(VocabularyError, match="320.*360"):
        check_pair(Tokenizer(byte_level_tokenizer(320)), Tokenizer(metaspace_tokenizer(360)), "big", "small")


# ---- bridging

BYTES, PIECES = Tokenizer(byte_level_tokenizer(320)), Tokenizer(metaspace_tokenizer(360))
FEWER = Tokenizer(byte_level_tokenizer(290))
TEXTS = [
    "the cat sat on the mat",
    " a space first,  two spaces,\n\n    and lines\n",
    "Él dijo: naïve café, 山の上の家 😀👩\u200d🚀",
    "def add(a, b):\n    return a + b  # 1234\n",
]


@pytest.mark.parametrize(("target", "draft"), [(BYTES, FEWER), (BYTES, PIECES), (PIECES, BYTES)])
def test_shared_tokens_spell_the_same(target: Tokenizer, draft: Tokenizer) -> None:
    ours, theirs = (ids.tolist() for ids in shared_tokens(target, draft))
    assert ours == sorted(set(ours)) and len(set(theirs)) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if a in target.special_ids:
            assert target.token(a) == draft.token(b)
        else:
            assert target.token_bytes(a) == draft.token_bytes(b)
    spelled = {draft.token_bytes(i) for i in range(draft.size)} - {b""}
    left_out = set(range(target.size)) - set(ours) - target.special_ids
    alone = {i for i in left_out if target.token_bytes(i) in spelled}
    assert all(target.token(i).startswith("<0x") for i in alone)  # a letter and its byte spell the same once
    assert len(ours) >= 250


def test_shared_tokens_are_found_under_other_ids() -> None:
    ours, theirs = shared_tokens(BYTES, PIECES)
    place = ours.tolist().index(BYTES.token_id("Ġthe"))
    assert theirs[place] == PIECES.token_id("\u2581the")
    letter = ours.tolist().index(BYTES.token_id("e"))
    assert theirs[letter] == PIECES.token_id("e") != PIECES.token_id("<0x65>")


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
@pytest.mark.parametrize("text", TEXTS)
def test_text_of_tokens_is_certain_or_unfinished(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
    reader, known = TextOf(tokenizer), ""
    for end, token in enumerate(ids, start=1):
        known += reader.push(token)
        assert spelled.startswith(known)
        whole = b"".join(map(tokenizer.token_bytes, ids[:end]))
        assert reader.unfinished == (known.encode() != whole)
    assert known == spelled and known.strip(" ") == text.strip(" ")


def test_special_tokens_are_text_by_their_names() -> None:
    reader = TextOf(BYTES)
    special = min(BYTES.special_ids)
    assert reader.push(special) == BYTES.token(special)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
@pytest.mark.parametrize("text", TEXTS)
def test_text_that_goes_on_spells_itself_at_every_cut(tokenizer: Tokenizer, text: str) -> None:
    encoder = Encoder(tokenizer)
    assert encoder.go_on("") == []
    for cut in range(len(text)):
        ids = encoder.go_on(text[cut:])
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text[cut:]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
@pytest.mark.parametrize("text", TEXTS)
def test_a_seam_changes_no_token(tokenizer: Tokenizer, text: str) -> None:
    encoder = Encoder(tokenizer)
    seams = {seam(text, end) for end in range(len(text) + 1)} - {0}
    assert seams or " " not in text.strip()
    for place in seams:
        assert encoder.go_on(text[:place]) + encoder.go_on(text[place:]) == encoder.go_on(text)
    assert seam("nothingtocut", 12) == 0 and seam("ends with ", 10) == 4 and seam("a  b", 4) == 0


def test_the_refusal_names_the_drafters_that_bridge() -> None:
    with pytest.raises(VocabularyError, match="intersect or reencode"):
        check_pair(BYTES, PIECES, "big", "small")
