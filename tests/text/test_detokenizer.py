"""Decoding behind a prompt: nothing of the prompt comes again, and every token has its place in the text."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tiny_models import (
    BOS,
    EOS,
    byte_level_tokenizer,
    metaspace_tokenizer,
    tiny_config,
    tiny_weights,
    write_gguf,
)
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from outpace import SamplingParams, load
from outpace.text.detokenizer import StreamDecoder, TextOffsets
from outpace.text.tokenizer import Tokenizer

MARK = "\u2581"


def _added(backend: tokenizers.Tokenizer, **options) -> Tokenizer:
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return Tokenizer(backend, bos=backend.token_to_id(BOS), **options)


def _unigram(scheme: str) -> tokenizers.Tokenizer:
    """T5's kind: no byte tokens, and a Metaspace decoder."""
    pieces = ["<unk>", BOS, EOS, MARK, *(MARK + word for word in ("the", "dog", "say")), *"thedogsay,.\né日"]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", BOS, EOS)])
    return backend


def _unigram_with_bytes() -> tokenizers.Tokenizer:
    """Llama's shape around a unigram model."""
    pieces = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), MARK, MARK + "the", *"thedogsay,."]
    model = models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", BOS, EOS)])
    return backend


def _without_prefix() -> tokenizers.Tokenizer:
    """Gemma's kind: nothing is put before a text, nothing taken away."""
    backend = metaspace_tokenizer()
    backend.normalizer = normalizers.Replace(" ", MARK)
    backend.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


KINDS = {
    "bytes": _added(byte_level_tokenizer(258)),
    "byte-level": _added(byte_level_tokenizer()),
    "metaspace": _added(metaspace_tokenizer(), add_bos=True),
    "metaspace without prefix": _added(_without_prefix()),
    "unigram": _added(_unigram("always")),
    "unigram, first": _added(_unigram("first")),
    "unigram, never": _added(_unigram("never")),
    "unigram with bytes": _added(_unigram_with_bytes(), add_bos=True),
}
EVERY = pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
ENDINGS = [
    "say the",
    "say ",
    "the\n",
    "the\n\n\n\n\n\n\n\n\n\n\n\n",
    "é",
    "日",
    "🙂",
    "<s>",
    "the</s>",
    "the" + "</s>" * 12,
    "a<tool>",
    "",
]


def stream(tokenizer: Tokenizer, ids, context=()) -> str:
    decoder = StreamDecoder(tokenizer, context)
    return "".join(map(decoder.push, ids)) + decoder.flush()


def added(tokenizer: Tokenizer, prompt, answer) -> str | None:
    """What decoding both adds to decoding the prompt; None where that is not defined."""
    head, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *answer])
    return whole[len(head) :] if whole.startswith(head) else None


def parts_of_characters(tokenizer: Tokenizer, ids) -> int:
    """How many of the last tokens hold the beginning of a character only."""
    spelt = b"".join(map(tokenizer.token_bytes, ids))
    for count in range(4):
        try:
            b"".join(map(tokenizer.token_bytes, ids[: len(ids) - count])).decode()
            return count
        except UnicodeDecodeError:
            continue
    raise AssertionError(spelt)


@EVERY
@pytest.mark.parametrize("prompt", ENDINGS)
@pytest.mark.parametrize("answer", ["the dog", " the", "\n", "é日🙂", "</s>the", "<tool>,", "."])
def test_nothing_of_the_prompt_comes_again(tokenizer, prompt, answer):
    """Whatever its last piece is. A character that the prompt begins and the answer completes is the answer's."""
    prompt, answer = tokenizer.encode(prompt, True), tokenizer.encode(answer, False)
    both = [*prompt, *answer]
    for place in range(max(0, len(prompt) - 5), len(both) + 1):
        known, new = both[:place], both[place:]
        whole = both[: place - parts_of_characters(tokenizer, known)]
        expected = tokenizer.decode(both).removeprefix(tokenizer.decode(whole))
        assert stream(tokenizer, new, known) == expected
        assert added(tokenizer, known, new) in (expected, None)


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(0, 400), max_size=14),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_prompt_and_any_answer(kind, prompt, answer):
    """Broken characters on both sides, too. U+FFFD for the prompt's own bytes is not said again."""
    tokenizer = KINDS[kind]
    prompt, answer = ([i for i in ids if i < tokenizer.size] for ids in (prompt, answer))
    expected = added(tokenizer, prompt, answer)
    if b"\xef\xbf\xbd" in b"".join(map(tokenizer.token_bytes, [*prompt, *answer])):
        return  # a U+FFFD that is no mistake
    found = stream(tokenizer, answer, prompt)
    assert expected in (found, None)


_SPELLED = {KINDS["bytes"].token_bytes(i): i for i in range(258)}
BYTES = {  # ids by byte
    "bytes": [_SPELLED[bytes([byte])] for byte in range(256)],
    "metaspace": [KINDS["metaspace"].token_id(f"<0x{byte:02X}>") for byte in range(256)],
}
BROKEN = st.lists(st.sampled_from([0x0A, 0x20, 0x41, 0x80, 0x9F, 0xA9, 0xAC, 0xC3, 0xE2, 0xED, 0xF0, 0xFF]), max_size=6)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(BYTES)), BROKEN, BROKEN, st.booleans())
def test_bytes_on_both_sides(kind, prompt, answer, plain):
    tokenizer = KINDS[kind]
    known, new = ([BYTES[kind][byte] for byte in side] for side in (prompt, answer))
    new += tokenizer.encode("the", False) if plain else []
    if known and not tokenizer.decode(known):
        return  # a leading space that is taken away: whether it was valid shows later only
    assert added(tokenizer, known, new) in (stream(tokenizer, new, known), None)


@EVERY
@pytest.mark.parametrize("text", ["say the dog, \n\n é日🙂 the", "  the", "\n\n\nthe", "🙂🙂", "a<tool>b</s> the", " "])
def test_every_token_has_its_place(tokenizer, text):
    """As a whole, and in events as a stream gives them: behind a prompt, from any place on."""
    ids = tokenizer.encode(text, True)
    for start in range(len(ids) + 1):
        known, new = ids[:start], ids[start:]
        answer = stream(tokenizer, new, known)
        offsets = TextOffsets(tokenizer, known, 7).add(new, True)
        for token, offset in zip(new, offsets, strict=True):
            spelt = tokenizer.token_bytes(token)
            try:
                spelling = spelt.decode()
            except UnicodeDecodeError:  # a part of the character that stands there
                assert spelt in answer[offset - 7 :][:2].encode()
            else:
                at = answer[offset - 7 :]
                assert at.startswith(spelling) or (offset == 7 and at.startswith(spelling.lstrip(" ")))
        assert offsets == sorted(offsets)
        decoder, event, parts = StreamDecoder(tokenizer, known), [], []
        places = TextOffsets(tokenizer, known, 7)
        for token in new:
            event.append(token)
            if decoder.push(token):
                parts += places.add(event, False)
                event = []
        assert [*parts, *places.add(event, True)] == offsets


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(BYTES)), BROKEN, st.integers(0, 6))
def test_places_in_broken_text(kind, content, cut):
    """Each U+FFFD belongs to the tokens that it stands for."""
    tokenizer = KINDS[kind]
    ids = [BYTES[kind][byte] for byte in content] + tokenizer.encode("the", False)
    whole, offsets = tokenizer.decode(ids), TextOffsets(tokenizer).add(ids, True)
    assert offsets == sorted(offsets)
    for byte, offset in zip(content, offsets, strict=False):
        assert (
            whole[offset] in (chr(byte) if byte < 128 else "", "\ufffd") or byte in whole[offset].encode() or byte == 32
        )


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A random model with byte tokens, as a GGUF file of the kind ``llama``."""
    backend = metaspace_tokenizer()
    config = tiny_config("llama", backend)
    path = write_gguf(tmp_path_factory.mktemp("llama") / "m.gguf", config, tiny_weights(config), backend)
    return load(path)


@pytest.mark.parametrize("prompt", ["hi\n", "hi日", "\n\n\n\n\n\n\n\n\n", "the "])
def test_a_prompts_last_piece_triggers_no_stop_string(llama, prompt):
    (letter,) = llama.target.tokenizer.encode("x", False)[1:] or llama.target.tokenizer.encode("x", False)
    for stop in [(), ("\n",), ("日",), (" ",)]:
        params = SamplingParams(max_tokens=3, logit_bias={letter: 100}, stop=stop, logprobs=1)
        result = llama.generate(prompt, params)
        assert (result.text, result.finish_reason, len(result.logprobs)) == ("xxx", "length", 3), stop
