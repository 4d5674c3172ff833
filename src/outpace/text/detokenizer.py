"""From tokens to text, token by token: what is certain already, and where in the text each token begins."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any, Protocol

import tokenizers

from ..core.errors import ModelError


class Vocabulary(Protocol):
    """What is needed of a :class:`outpace.text.tokenizer.Tokenizer`."""

    backend: tokenizers.Tokenizer
    special_ids: frozenset[int]


class StreamDecoder:
    """Decodes token by token: the pieces of ``push`` and ``flush`` joined are exactly the whole decode.

    With ``context_ids`` (the prompt) the joined pieces are what decoding context and output together adds to decoding
    the context, so the leading space of a metaspace token survives. Nothing of the context is given out, but for one
    character: one whose first bytes are the context's and whose last are the output's, which is the output's, whole.
    Where the output's first bytes do not go on with it, U+FFFD replaces the context's bytes there, not here.

    ``push`` holds back what later tokens could still change: the bytes of an unfinished character, and in
    byte-fallback tokenizers a run of byte tokens up to its end, because one broken byte turns the whole run into
    U+FFFD. Each token costs O(1), whatever came before; of the context only its ends are read.

    Raises ModelError if the tokenizer's decoder is of an unknown kind.
    """

    def __init__(self, tokenizer: Vocabulary, context_ids: Sequence[int] = (), skip_special: bool = True) -> None:
        self._backend = tokenizer.backend
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._pieces = pieces_of(tokenizer.backend)
        start = 0
        while start < len(context_ids) and not self._pieces.begun:
            self.push(context_ids[start])
            start += 1
        last = len(context_ids)
        while last > start:  # back to a token behind which it does not matter what came before
            last -= 1
            token = self._token(context_ids[last])
            if token is not None and self._pieces.settles(token):
                break
        for token_id in context_ids[last:]:
            self.push(token_id)
        self._pieces.leave_behind()

    def push(self, token_id: int) -> str:
        """The text that has become certain with this token; may be empty."""
        return "".join(self.parts(token_id))

    def parts(self, token_id: int) -> tuple[str, str]:
        """The text of :meth:`push` in two: of the tokens before this one, and of this one, with the character that it
        completes."""
        token = self._token(token_id)
        return ("", "") if token is None else self._pieces.push(token)

    def spells(self, token_id: int) -> bool:
        """Whether the token adds to the text."""
        return self._token(token_id) is not None

    def held(self) -> str:
        """What is held back, as :meth:`flush` would give it."""
        return self._pieces.held()

    def flush(self) -> str:
        """What was held back, as the whole decode shows it at the end."""
        return self._pieces.flush()

    def _token(self, token_id: int) -> str | None:
        """The token's string; None for one that adds no text."""
        return None if token_id in self._skipped or token_id < 0 else self._backend.id_to_token(token_id)


class TextOffsets:
    """Where in the text that a :class:`StreamDecoder` gives each token begins, in characters: one that begins within a
    character, with that character; one that adds no text, at the end of the text before it. ``length``: characters
    before the first token."""

    def __init__(self, tokenizer: Vocabulary, context_ids: Sequence[int] = (), length: int = 0) -> None:
        self._decoder, self._length = StreamDecoder(tokenizer, context_ids), length

    def add(self, ids: Sequence[int], final: bool) -> list[int]:
        """The offsets of the next tokens. Unless they are the ``final`` ones, their text is certain, as an event's."""
        offsets: list[int] = []
        waiting: list[int] = []  # places of tokens whose text is held back
        for place, token_id in enumerate(ids):
            earlier, own = self._decoder.parts(token_id)
            if earlier or own:
                self._settle(offsets, waiting, earlier)
                waiting = []
            if not own and self._decoder.spells(token_id):
                waiting.append(place)
            offsets.append(self._length)
            self._length += len(own)
        if final:
            self._settle(offsets, waiting, self._decoder.flush())
        return offsets

    def _settle(self, offsets: list[int], waiting: list[int], text: str) -> None:
        """The tokens that wait turn out to spell ``text``: each a byte of it or, where it is broken, a U+FFFD."""
        sizes = [1] * len(text)
        if text and len(text) != len(waiting):
            sizes = [len(character.encode()) for character in text]
            sizes[0] -= sum(sizes) - len(waiting)  # its first bytes are the context's or another token's
        places = [place for place, size in enumerate(sizes) for _ in range(size)]
        for token, place in zip(waiting, places, strict=False):
            offsets[token] = self._length + place
        self._length += len(text)


class _ByteLevelPieces:
    """Tokens spell bytes in the GPT-2 alphabet. One with a letter outside of it spells itself (added tokens)."""

    begun = True  # no token's text depends on whether it is the first

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._foreign = False  # the first bytes of the unfinished character are the context's

    def spell(self, token: str) -> bytes:
        try:
            return bytes([_BYTE_OF[letter] for letter in token])
        except KeyError:
            return token.encode("utf-8", "replace")

    def settles(self, token: str) -> bool:
        """Whether the state behind the token is the same whatever came before."""
        return any(byte & 0xC0 != 0x80 for byte in self.spell(token))

    def leave_behind(self) -> None:
        """What was pushed until now is the context."""
        self._foreign = self._unfinished

    def push(self, token: str) -> tuple[str, str]:
        """What has become certain of earlier tokens, and of this one."""
        unfinished = self._unfinished
        text = self._utf8.decode(self.spell(token))
        if not unfinished or not text:
            return "", text
        foreign, self._foreign = self._foreign, False
        if text[0] != "\ufffd":
            return "", text
        return "" if foreign else "\ufffd", text[1:]

    def held(self) -> str:
        return "\ufffd" if self._unfinished and not self._foreign else ""

    def flush(self) -> str:
        text = self.held()
        self._utf8.reset()
        self._foreign = False
        return text

    @property
    def _unfinished(self) -> bool:
        return bool(self._utf8.getstate()[0])


class _MetaspacePieces:
    """Tokens spell text with U+2581 for a space, and with ``bytes_too`` single bytes as <0x0A>. ``strip`` leading
    spaces go; with ``bare`` those of the first token, all of them."""

    def __init__(self, marker: str, bytes_too: bool, strip: int, bare: bool = False) -> None:
        self._marker, self._bytes_too, self._strip, self._bare = marker, bytes_too, strip, bare
        self._run = 0  # byte tokens in the current run, without the context's
        self._broken = False  # the run is not UTF-8, so each of its bytes is a U+FFFD
        self._run_text = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")

    @property
    def begun(self) -> bool:
        return not self._strip and not self._bare

    def spell(self, token: str) -> bytes:
        byte = self._byte(token)
        return token.replace(self._marker, " ").encode("utf-8", "replace") if byte is None else bytes([byte])

    def settles(self, token: str) -> bool:
        return self._byte(token) is None

    def leave_behind(self) -> None:
        self._stripped(self._rest())
        self._run, self._run_text = 0, ""

    def push(self, token: str) -> tuple[str, str]:
        byte = self._byte(token)
        if byte is None:
            space, self._bare = "" if self._bare else " ", False
            return self.flush(), self._stripped(token.replace(self._marker, space))
        self._run += 1
        if self._broken:
            return "", self._stripped("\ufffd")
        try:
            self._run_text += self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._broken = True
            return self._stripped("\ufffd" * (self._run - 1)), self._stripped("\ufffd")
        return "", ""

    def held(self) -> str:
        text = self._rest()
        return text[min(self._strip, len(text) - len(text.lstrip(" "))) :]

    def flush(self) -> str:
        text = self._rest()
        self._run, self._broken, self._run_text = 0, False, ""
        self._utf8.reset()
        return self._stripped(text)

    def _rest(self) -> str:
        """What the run adds if it ends here."""
        unfinished = bool(self._utf8.getstate()[0])
        return "" if self._broken else "\ufffd" * self._run if unfinished else self._run_text

    def _byte(self, token: str) -> int | None:
        return _fallback_byte(token) if self._bytes_too else None

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text


Pieces = _ByteLevelPieces | _MetaspacePieces


def pieces_of(backend: tokenizers.Tokenizer) -> Pieces:
    """The streaming twin of the tokenizer's decoder, chosen by the decoder's own description."""
    description: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": None}
    steps = description["decoders"] if description["type"] == "Sequence" else [description]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevelPieces()
    if kinds == ["Metaspace"]:
        return _MetaspacePieces(steps[0]["replacement"], False, 0, bare=steps[0]["prepend_scheme"] != "never")
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
    """GPT-2's alphabet: printable Latin-1 bytes map to themselves, the others follow from U+0100 upward."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return letters


_BYTE_OF = _byte_letters()
