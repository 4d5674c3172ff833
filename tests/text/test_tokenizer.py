"""Tokenizers from both sources, and streams that equal the whole decode."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tiny_models import (
    byte_level_tokenizer,
    metaspace_tokenizer,
    tiny_config,
    tiny_weights,
    write_directory,
)
from tokenizers import AddedToken, decoders, models

from outpace.core.errors import ModelError
from outpace.files.checkpoint import open_checkpoint
from outpace.text.detokenizer import _BYTE_OF, StreamDecoder
from outpace.text.gguf_tokenizer import build_tokenizer
from outpace.text.tokenizer import Tokenizer

METADATA_PATH = Path("m.gguf")
BYTE_LEVEL = Tokenizer(byte_level_tokenizer(258), bos=0, eos=1)  # no merges: a byte a token
MERGED = Tokenizer(byte_level_tokenizer(), bos=0, eos=1)
METASPACE = Tokenizer(metaspace_tokenizer(), bos=1, eos=2, add_bos=True)
ALL = [BYTE_LEVEL, MERGED, METASPACE]
TEXTS = [
    "the family 👩‍👩‍👧‍👦 and é e\u0301 日本語",
    "  two  spaces\n\n and\ttabs ",
    "naïve 🙂🙂 done",
    "",
    " ",
    "\ufffd real",
]


def stream(tokenizer: Tokenizer, ids, context=()) -> str:
    decoder = StreamDecoder(tokenizer, context)
    pieces = [decoder.push(token) for token in ids]
    return "".join(pieces) + decoder.flush()


@pytest.mark.parametrize("tokenizer", ALL)
@pytest.mark.parametrize("text", TEXTS)
def test_encoding_and_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, True)) == text


@pytest.mark.parametrize("tokenizer", ALL)
@pytest.mark.parametrize("text", TEXTS)
def test_stream_cut_at_every_offset(tokenizer, text):
    """Also when the answer ends in the middle of a character."""
    ids = tokenizer.encode(text, False)
    for end in range(len(ids) + 1):
        assert stream(tokenizer, ids[:end]) == tokenizer.decode(ids[:end])


@pytest.mark.parametrize("tokenizer", ALL)
@pytest.mark.parametrize("text", TEXTS[:3])
def test_no_replacement_characters_on_the_way(tokenizer, text):
    ids = tokenizer.encode(text, False)
    decoder = StreamDecoder(tokenizer)
    shown = ""
    for token in ids:
        shown += decoder.push(token)
        assert "\ufffd" not in shown
        assert text.startswith(shown)
    assert shown + decoder.flush() == text


@pytest.mark.parametrize("tokenizer", ALL)
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_joined_are_the_text(tokenizer, text):
    """Of both kinds; a leading space that a decoder takes away is spelt, and special tokens spell nothing."""
    spelt = b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode(text, add_special=True)).decode()
    assert spelt.lstrip(" ") == text.lstrip(" ")
    assert all(tokenizer.token_bytes(i) == b"" for i in tokenizer.special_ids)


def test_first_piece_keeps_its_space_after_a_prompt():
    prompt, answer = METASPACE.encode("the dog", True), METASPACE.encode("the fox", False)
    assert stream(METASPACE, answer) == "the fox"
    assert stream(METASPACE, answer, prompt[-2:]) == " the fox"


@pytest.mark.parametrize("tokenizer", ALL)
def test_two_halves_are_one_run(tokenizer):
    """Eighty tokens, then eighty more from their ids, read as one run of 160."""
    draw = random.Random(0)
    ids = [draw.randrange(tokenizer.size) for _ in range(160)]
    decoder = StreamDecoder(tokenizer)
    first = "".join(decoder.push(token) for token in ids[:80])
    assert first + stream(tokenizer, ids[80:], ids[:80]) == tokenizer.decode(ids)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([0, 1, 2]), st.lists(st.integers(-1, 400), max_size=40), st.integers(0, 5))
def test_stream_equals_decode_for_any_ids(which, ids, specials):
    """Broken UTF-8, special tokens between the bytes of a character, and ids out of range (which are nothing)."""
    tokenizer = ALL[which]
    ids = [*ids[:specials], 0, 1, *ids[specials:]]
    known = [token for token in ids if 0 <= token < tokenizer.size]
    assert stream(tokenizer, ids) == tokenizer.decode(known)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC1, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF])))
def test_broken_bytes_stream_as_they_decode(content):
    """Half characters, overlong forms, surrogates, bytes that never occur."""
    letters = {byte: letter for letter, byte in _BYTE_OF.items()}
    for tokenizer, spell in [(BYTE_LEVEL, letters.get), (METASPACE, "<0x{:02X}>".format)]:
        ids = [tokenizer.token_id(spell(byte)) for byte in content]
        ids += tokenizer.encode("the", False)
        assert stream(tokenizer, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, METASPACE])
def test_cost_does_not_grow_with_the_answer(tokenizer, monkeypatch):
    """No call of the whole decode at all."""
    monkeypatch.setattr(Tokenizer, "decode", None)
    ids = tokenizer.encode("the fox 🙂 ", False) * 50
    assert stream(tokenizer, ids).count("🙂") == 50


def test_decoders_of_other_kinds():
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        StreamDecoder(Tokenizer(backend))


def test_names_sizes_and_ids():
    assert MERGED.tokens()[0] == "<s>"
    assert None not in MERGED.tokens()
    assert len(MERGED.tokens()) == MERGED.size
    assert MERGED.special_ids == {0, 1}
    assert MERGED.token(1) == "</s>"
    assert MERGED.token_id("nothing") is None
    for bad in (-1, MERGED.size):
        with pytest.raises(ModelError, match="not in the vocabulary"):
            MERGED.token(bad)
    assert MERGED.decode([0, *MERGED.encode("hi", False)], skip_special=False) == "<s>hi"


@pytest.mark.parametrize(
    ("settings_", "prefix", "suffix"),
    [({}, (), ()), ({"add_bos_token": True}, (0,), ()), ({"add_bos_token": True, "add_eos_token": True}, (0,), (1,))],
)
def test_flags_of_the_tokenizer_config(tmp_path, settings_, prefix, suffix):
    backend = byte_level_tokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=20)
    config = tiny_config("llama", backend)
    folder = write_directory(tmp_path, config, tiny_weights(config), backend, tokenizer_config=settings_)
    tokenizer = open_checkpoint(folder).tokenizer
    assert (tokenizer.prefix, tokenizer.suffix) == (prefix, suffix)
    ids = tokenizer.encode("the text is longer than three", True)
    assert ids == [*prefix, *MERGED.encode("the text is longer than three", False), *suffix]


def test_tokens_declared_beside_the_tokenizer(tmp_path):
    """tokenizer_config.json may hold tokens that tokenizer.json lacks."""
    backend = byte_level_tokenizer()
    new = backend.get_vocab_size()
    config = tiny_config("llama", backend)
    declared = {"added_tokens_decoder": {str(new): {"content": "<|turn|>", "special": True, "normalized": False}}}
    folder = write_directory(tmp_path, config, tiny_weights(config), backend, tokenizer_config=declared)
    tokenizer = open_checkpoint(folder).tokenizer
    assert tokenizer.encode("<|turn|>", False) == [new]
    assert tokenizer.size == new + 1
    assert new in tokenizer.special_ids


# GGUF metadata


def _metadata(pre: str | None = "gpt-2", **changes: Any) -> dict[str, Any]:
    backend = byte_level_tokenizer(258)
    tokens = [backend.id_to_token(i) for i in range(258)] + ["Ġt", "12", "123", "1234", "\u010a\u010a"]
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": ["Ġ t", "1 2", "12 3", "123 4", "\u010a \u010a"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.pre": pre,
    }
    return {key: value for key, value in {**found, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("pre", "digits", "lines"),
    [
        (None, ["1234"], ["Ċ", "Ċ", "a"]),
        ("gpt-2", ["1234"], ["Ċ", "Ċ", "a"]),
        ("smollm", ["1", "2", "3", "4"], ["Ċ", "Ċ", "a"]),
        ("qwen2", ["1", "2", "3", "4"], ["ĊĊ", "a"]),
        ("llama-bpe", ["123", "4"], ["ĊĊ", "a"]),
        ("deepseek-coder", ["1", "2", "3", "4"], ["Ċ", "Ċ", "a"]),
    ],
)
def test_pre_tokenizers_split_as_defined(tmp_path, pre, digits, lines):
    """GPT-2's pattern keeps digits together and leaves the last blank of a run to what follows; cl100k's takes a
    run of line ends whole, with digits by threes (Llama 3) or one by one (Qwen2)."""
    tokenizer = build_tokenizer(tmp_path / "m.gguf", _metadata(pre))

    def strings(text: str) -> list[str]:
        return [tokenizer.token(token) for token in tokenizer.encode(text, False)]

    assert strings("1234") == digits
    assert strings("\n\na") == lines
    assert strings(" t") == ["Ġt"]
    assert tokenizer.decode(tokenizer.encode("x 1234\n\n a <s>é", False), skip_special=False) == "x 1234\n\n a <s>é"


def test_characters_are_composed_where_the_source_does(tmp_path):
    composed, apart = "\u00e9", "e\u0301"
    for pre, same in [("qwen2", True), ("smollm", False)]:
        tokenizer = build_tokenizer(tmp_path / "m.gguf", _metadata(pre))
        assert (tokenizer.encode(composed, False) == tokenizer.encode(apart, False)) == same


def test_unused_rows_and_flags(tmp_path):
    base = _metadata("llama-bpe")
    padded = {
        "tokenizer.ggml.tokens": [*base["tokenizer.ggml.tokens"], "<tool>", "[PAD1]", "[PAD2]"],
        "tokenizer.ggml.token_type": [*base["tokenizer.ggml.token_type"], 4, 5, 5],
    }
    tokenizer = build_tokenizer(tmp_path / "m.gguf", {**base, **padded})
    assert tokenizer.size == len(base["tokenizer.ggml.tokens"]) + 1
    assert tokenizer.encode("a<tool>", True) == [0, *tokenizer.encode("a", False), tokenizer.size - 1]
    assert tokenizer.special_ids == {0, 1}  # a user-defined token is text
    assert tokenizer.decode(tokenizer.encode("a<tool></s>", False)) == "a<tool>"
    silent = build_tokenizer(tmp_path / "m.gguf", {**base, "tokenizer.ggml.add_bos_token": False})
    assert silent.prefix == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.pre": "martian"}, "unknown pre-tokenizer.*martian"),
        ({"tokenizer.ggml.model": "bert"}, "unknown tokenizer.ggml.model 'bert'"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
        ({"tokenizer.ggml.merges": ["no-space"]}, "is not two tokens"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "inconsistent"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
        ({"tokenizer.ggml.token_type": [1]}, "token types"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id is 99999"),
        ({"tokenizer.ggml.model": "llama"}, "scores is missing"),
    ],
)
def test_metadata_that_cannot_be_used(tmp_path, changes, words):
    with pytest.raises(ModelError, match=words) as error:
        build_tokenizer(tmp_path / "m.gguf", _metadata(**changes))
    assert "m.gguf" in str(error.value)


def _sentencepiece(text: str, vocab: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece's rule, slowly: join the neighbours of best score (the first of equals) until none is left."""
    pieces = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        joints = [(-scores[vocab[a + b]], place) for place, (a, b) in enumerate(pairwise(pieces)) if a + b in vocab]
        if not joints:
            break
        place = min(joints)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    ids: list[int] = []
    for piece in pieces:
        ids += [vocab[piece]] if piece in vocab else [vocab[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return ids


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(["the", " dog", "there", " ", "quick", "over", "brown", "\n", "é日🙂1"])).map("".join),
    st.integers(0, 3),
)
def test_metaspace_merges_follow_the_scores(text, seed):
    """Also with scores in another order than the ids."""
    vocab, metadata = _metaspace_metadata(seed)
    tokenizer = build_tokenizer(METADATA_PATH, metadata)
    assert tokenizer.encode(text, False) == _sentencepiece(text, vocab, metadata["tokenizer.ggml.scores"])
    assert tokenizer.decode(tokenizer.encode(text, True)) == text


def _metaspace_metadata(seed: int):
    tokens = METASPACE.tokens()
    scores = [-float(place) for place in range(len(tokens))]
    if seed:
        random.Random(seed).shuffle(scores)
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
    }
    return {token: place for place, token in enumerate(tokens)}, metadata


def test_metaspace_without_a_leading_space():
    _, metadata = _metaspace_metadata(0)
    tokenizer = build_tokenizer(METADATA_PATH, metadata | {"tokenizer.ggml.add_space_prefix": False})
    for text in [" the", "the", "  the "]:
        ids = tokenizer.encode(text, False)
        assert tokenizer.decode(ids) == text == stream(tokenizer, ids)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.prefix) == (1, 2, (1,))


def test_added_token_outside_the_alphabet_streams_as_it_decodes():
    backend = byte_level_tokenizer()
    backend.add_tokens([AddedToken("日 x", normalized=False), AddedToken("é", normalized=False)])
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode("a日 xéb", False)
    assert max(ids) == tokenizer.size - 1
    assert stream(tokenizer, ids) == tokenizer.decode(ids)


def test_the_better_score_wins_over_the_smaller_id():
    vocab, metadata = _metaspace_metadata(0)
    tokens = [*metadata["tokenizer.ggml.tokens"], "AB", "BC", "A", "B", "C"]
    changes = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*metadata["tokenizer.ggml.scores"], -5000.0, -4000.0, -9000.0, -9000.0, -9000.0],
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], 1, 1, 1, 1, 1],
    }
    tokenizer = build_tokenizer(METADATA_PATH, metadata | changes)
    assert [tokenizer.token(token) for token in tokenizer.encode("ABC", False)] == ["\u2581", "A", "BC"]
    assert len(vocab) == len(tokens) - 5
