"""Text to token ids and back, whole or as a stream."""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import Sequence
from typing import Any

import tokenizers

from ..core.errors import ModelError


class Tokenizer:
    """A thin wrapper of ``tokenizers.Tokenizer``.

    ``size`` counts the real tokens (largest id + 1): rows of the embedding beyond it are padding. ``bos`` and
    ``eos`` are ids or None. ``prefix`` and ``suffix`` are the ids that ``encode(..., add_special=True)`` puts
    around a text: those of the tokenizer's own post-processor, and BOS / EOS where ``add_bos`` / ``add_eos`` ask
    for them and the post-processor does not add them already.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos: int | None = None,
        eos: int | None = None,
        add_bos: bool = False,
        add_eos: bool = False,
    ) -> None:
        # Cutting and padding are a caller's affair; a tokenizer.json may bring both along from training.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.bos, self.eos = bos, eos
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self.size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        prefix, suffix = _surroundings(backend)
        if add_bos and bos is not None and bos not in prefix:
            prefix = [bos, *prefix]
        if add_eos and eos is not None and eos not in suffix:
            suffix = [*suffix, eos]
        self.prefix, self.suffix = tuple(prefix), tuple(suffix)

    @property
    def adds_bos(self) -> bool:
        """Whether ``encode(..., add_special=True)`` begins with BOS."""
        return self.bos is not None and self.bos in self.prefix

    def encode(self, text: str, add_special: bool) -> list[int]:
        """Token ids of ``text``. Special tokens written out in ``text`` become their ids, as everywhere."""
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    def exceeds(self, text: str, most: int) -> bool:
        """Whether ``text`` surely has more than ``most`` tokens, found on its beginning: a long text need not be
        tokenized as a whole to be refused. A beginning counts with twice ``most``, because its last tokens may differ
        from the whole text's."""
        size = 8 * most  # characters; most texts have three or four a token
        while size < len(text):
            if len(self.encode(text[:size], add_special=False)) > 2 * most:
                return True
            size *= 2
        return False

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ``ids``; ids that the vocabulary lacks give nothing, broken UTF-8 gives U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def token(self, token_id: int) -> str:
        """The token's own string, e.g. "Ġthe". Raises ModelError for an id that the vocabulary lacks."""
        token = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            raise ModelError(f"token id {token_id} is not in the vocabulary of {self.size} tokens")
        return token

    def token_id(self, token: str) -> int | None:
        """The id of a token's own string, None if there is no such token."""
        return self.backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token spells, in UTF-8: nothing for a special token, for some a part of a character. Joined they are
        the decoded text, but for a leading space that the tokenizer's decoder takes away and for broken characters."""
        if token_id in self.special_ids:
            return b""
        return self._spelling.spell(self.token(token_id))

    @functools.cached_property
    def _spelling(self) -> _ByteLevelPieces | _MetaspacePieces:
        return _pieces(self.backend)

    def tokens(self) -> list[str | None]:
        """Every token's string by id; None for ids without one."""
        strings: list[str | None] = [None] * self.size
        for token, index in self.backend.get_vocab(with_added_tokens=True).items():
            strings[index] = token
        return strings


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the post-processor puts before and after a text, found on a sample."""
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    raise ModelError("the tokenizer's post-processor changes the text's own tokens, which is not supported")


class StreamDecoder:
    """Decodes token by token: the pieces of ``push`` and ``flush`` joined are exactly the whole decode.

    With ``context_ids`` (the last few prompt tokens) the joined pieces are what decoding context and output
    together adds to decoding the context, so the leading space of a metaspace token survives, and a character
    whose first bytes are in the context is completed. ``push`` holds back what later tokens could still change:
    the bytes of an unfinished character, and in byte-fallback tokenizers a run of byte tokens up to its end,
    because one broken byte turns the whole run into U+FFFD. Each token costs O(1), whatever came before.

    Raises ModelError if the tokenizer's decoder is of an unknown kind.
    """

    def __init__(self, tokenizer: Tokenizer, context_ids: Sequence[int] = (), skip_special: bool = True) -> None:
        self._backend = tokenizer.backend
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._pieces = _pieces(tokenizer.backend)
        for token_id in context_ids:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that has become certain with this token; may be empty."""
        if token_id in self._skipped or token_id < 0:
            return ""
        token = self._backend.id_to_token(token_id)
        return "" if token is None else self._pieces.push(token)

    def flush(self) -> str:
        """What was held back, as the whole decode shows it at the end."""
        return self._pieces.flush()


class _ByteLevelPieces:
    """Tokens spell bytes in the GPT-2 alphabet. One with a letter outside of it stands for itself (added tokens)."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def spell(self, token: str) -> bytes:
        try:
            return bytes([_BYTE_OF[letter] for letter in token])
        except KeyError:
            return token.encode("utf-8", "replace")

    def push(self, token: str) -> str:
        return self._utf8.decode(self.spell(token))

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _MetaspacePieces:
    """Tokens spell text with U+2581 for a space, and single bytes as <0x0A>; ``strip`` leading spaces go."""

    def __init__(self, marker: str, bytes_too: bool, strip: int) -> None:
        self._marker, self._bytes_too, self._strip = marker, bytes_too, strip
        self._run = 0  # byte tokens in the current run
        self._broken = False  # the run is not UTF-8, so each of its bytes is a U+FFFD
        self._run_text = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")

    def spell(self, token: str) -> bytes:
        byte = _fallback_byte(token) if self._bytes_too else None
        return token.replace(self._marker, " ").encode("utf-8", "replace") if byte is None else bytes([byte])

    def push(self, token: str) -> str:
        byte = _fallback_byte(token) if self._bytes_too else None
        if byte is None:
            return self._end_run() + self._stripped(token.replace(self._marker, " "))
        self._run += 1
        if self._broken:
            return self._stripped("\ufffd")
        try:
            self._run_text += self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._broken = True
            return self._stripped("\ufffd" * self._run)
        return ""

    def flush(self) -> str:
        return self._end_run()

    def _end_run(self) -> str:
        unfinished = bool(self._utf8.getstate()[0])
        text = "" if self._broken else "\ufffd" * self._run if unfinished else self._run_text
        self._run, self._broken, self._run_text = 0, False, ""
        self._utf8.reset()
        return self._stripped(text)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text


def _pieces(backend: tokenizers.Tokenizer) -> _ByteLevelPieces | _MetaspacePieces:
    """The streaming twin of the tokenizer's decoder, chosen by the decoder's own description."""
    description: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": None}
    steps = description["decoders"] if description["type"] == "Sequence" else [description]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevelPieces()
    plain = [step for step in steps if step["type"] not in ("ByteFallback", "Fuse")]
    if plain and plain[0]["type"] == "Replace" and plain[0]["content"] == " " and "Fuse" in kinds:
        marker = plain[0]["pattern"].get("String")
        strips = plain[1:]
        leading_only = all(s["type"] == "Strip" and s["content"] == " " and s["stop"] == 0 for s in strips)
        if marker and leading_only and len(strips) < 2:
            return _MetaspacePieces(marker, "ByteFallback" in kinds, strips[0]["start"] if strips else 0)
    raise ModelError(f"streaming is not supported for a tokenizer decoder of kind {' + '.join(map(str, kinds))}")


def _fallback_byte(token: str) -> int | None:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others follow from U+0100 upward."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return letters


_BYTE_OF = _byte_letters()
