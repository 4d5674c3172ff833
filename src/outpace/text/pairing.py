"""Whether a draft may speak for a target, the same id meaning the same token; and what joins two vocabularies."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..core.errors import VocabularyError
from ..core.types import Array
from .tokenizer import Tokenizer

_LEADS = ("\n", ".", "0", "a")  # texts before a text that goes on: one that no token joins with it will do


class HasTokens(Protocol):
    """The part of a tokenizer that pairing looks at."""

    @property
    def size(self) -> int: ...

    def tokens(self) -> Sequence[str | None]: ...


def check_pair(target: HasTokens, draft: HasTokens, target_name: str, draft_name: str) -> None:
    """Raise VocabularyError unless both tokenizers have the same token at every id.

    Compares the tokenizers, not the models' rows: embeddings may be padded to different sizes. The message
    names both sizes, the first id that differs, and the drafters that bridge vocabularies.
    """
    ours, theirs = target.tokens(), draft.tokens()
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if first is None and len(ours) == len(theirs):
        return
    sizes = f"{target_name} has {len(ours)} tokens and {draft_name} has {len(theirs)} tokens"
    if first is None:
        first = min(len(ours), len(theirs))
        longer = target_name if len(ours) > len(theirs) else draft_name
        difference = f"id {first} is {max(ours, theirs, key=len)[first]!r} in {longer} only"
    else:
        difference = f"id {first} is {ours[first]!r} in one and {theirs[first]!r} in the other"
    raise VocabularyError(
        f"these models do not share a vocabulary: {sizes}; {difference}. Choose another draft, or a drafter that "
        "bridges vocabularies: intersect or reencode."
    )


def shared_tokens(target: Tokenizer, draft: Tokenizer) -> tuple[Array, Array]:
    """The tokens that both vocabularies have: int64 ``[n]`` of their ids in the target's, ascending, and int64 ``[n]``
    of the ids that they have in the draft's. Tokens are the same when they spell the same bytes; special tokens when
    they have the same name."""
    known = _spellings(draft)
    pairs = sorted((index, known[key]) for key, index in _spellings(target).items() if key in known)
    ids = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return ids[:, 0].copy(), ids[:, 1].copy()


def _spellings(tokenizer: Tokenizer) -> dict[bytes | str, int]:
    """An id for every spelling. Of two tokens that spell the same, the one that is no mere byte of the fallback."""
    found: dict[bytes | str, int] = {}
    names = tokenizer.tokens()
    for index, name in enumerate(names):
        if name is None:
            continue
        key = name if index in tokenizer.special_ids else tokenizer.token_bytes(index)
        other = found.get(key)
        if other is None or len(name) < len(names[other] or ""):
            found[key] = index
    return found


class TextOf:
    """Tokens to text, one by one, special tokens by their names. ``unfinished``: whether the last tokens hold the
    first bytes of a character whose other bytes have not been generated; they are not part of the text yet."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that has become certain with this token."""
        if token in self._tokenizer.special_ids:
            return self._utf8.decode(self._tokenizer.token(token).encode("utf-8"))
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    @property
    def unfinished(self) -> bool:
        return bool(self._utf8.getstate()[0])


class Encoder:
    """Text to ids for text that goes on behind other text: some tokenizers put a space before whatever they are given,
    which belongs to a prefix only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._leads = [(lead, tokenizer.encode(lead, add_special=False)) for lead in _LEADS]
        first = tokenizer.encode("x", add_special=False)[:1]
        self._adds_space = bool(first) and tokenizer.token_bytes(first[0]).startswith(b" ")

    def go_on(self, text: str) -> list[int]:
        """The ids of text behind other text."""
        if not self._adds_space or not text:
            return self._tokenizer.encode(text, add_special=False)
        if text[0] == " " and text[1:2].isalnum():  # the space that it adds is the one that is there
            return self._tokenizer.encode(text[1:], add_special=False)
        for lead, before in self._leads:
            ids = self._tokenizer.encode(lead + text, add_special=False)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._tokenizer.encode(text, add_special=False)


def seam(text: str, end: int) -> int:
    """The last place before ``end`` where text may be cut without changing how it is encoded: before a space between
    a visible character and a letter or digit, since no token reaches across. 0 when there is none."""
    for place in range(min(end, len(text) - 1) - 1, 0, -1):
        if text[place] == " " and not text[place - 1].isspace() and text[place + 1].isalnum():
            return place
    return 0
