"""Text to token ids and back; detokenizer.py has the way back token by token."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, normalizers

from ..core.errors import ModelError, ParameterError
from .detokenizer import Pieces, TextOffsets, pieces_of


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

    def encode(self, text: str, add_special: bool, *, mark: str | None = None) -> list[int]:
        """Token ids of ``text``. Special tokens written out in ``text`` become their ids, as everywhere, but for those
        with a ``mark`` within; each mark is taken out of the text then. Raises ParameterError for text that UTF-8
        cannot write."""
        backend = self.backend if mark is None else self._without_marks(mark)
        try:
            ids = backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:  # the library's word for a lone surrogate, half of a UTF-16 character
            raise ParameterError("the text is not valid Unicode: it cannot be written as UTF-8") from error
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    def exceeds(self, text: str, most: int) -> bool:
        """Whether ``text`` surely has more than ``most`` tokens, found on a prefix of it: a long text need not be
        tokenized as a whole to be refused. A prefix counts with twice ``most``, because its last tokens may differ
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
    def _spelling(self) -> Pieces:
        return pieces_of(self.backend)

    @functools.lru_cache(maxsize=2)  # noqa: B019  (a tokenizer lives as long as its model)
    def _without_marks(self, mark: str) -> tokenizers.Tokenizer:
        """The backend, taking marks out of a text once the special tokens have been found in it. Shares the model."""
        backend = tokenizers.Tokenizer(self.backend.model)
        own = self.backend.normalizer
        backend.normalizer = normalizers.Sequence([normalizers.Replace(mark, ""), *([] if own is None else [own])])
        if self.backend.pre_tokenizer is not None:
            backend.pre_tokenizer = self.backend.pre_tokenizer
        for _, token in sorted(self.backend.get_added_tokens_decoder().items()):
            if token.special:  # found before the text is normalized: behind that the marks are gone
                kept = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
                backend.add_special_tokens([AddedToken(token.content, **kept, normalized=False)])
            else:
                backend.add_tokens([token])
        if any(backend.token_to_id(name) != index for index, name in self.specials.items()):
            raise ModelError("the tokenizer's added tokens have gaps between their ids: messages cannot spell them")
        return backend

    @functools.cached_property
    def special_pattern(self) -> re.Pattern[str] | None:
        """Finds special tokens that are written out, of several the longest; None where there are none."""
        names = sorted((name for name in self.specials.values() if len(name) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None

    @functools.cached_property
    def specials(self) -> dict[int, str]:
        """Names of the special tokens by id."""
        return {i: self.token(i) for i in sorted(self.special_ids)}

    def offsets(self, context_ids: Sequence[int] = (), length: int = 0) -> TextOffsets:
        """Where tokens begin in the text that follows ``context_ids``, counted on from ``length``."""
        return TextOffsets(self, context_ids, length)

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
