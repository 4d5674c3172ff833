"""Which pairs of vocabularies are let through (bugs B24 and B25)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.helpers.tiny_models import byte_level_tokenizer, metaspace_tokenizer

from outpace.core.errors import VocabularyError
from outpace.models.pairing import check_pair
from outpace.models.tokenizer import Tokenizer


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
