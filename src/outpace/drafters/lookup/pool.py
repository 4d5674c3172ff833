"""Texts that several requests look up in: files of the user's, and finished requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...core.errors import DrafterError, ParameterError
from ...core.protocols import Parts
from .suffix import SuffixText

logger = logging.getLogger("outpace")


class Pool:
    """Finished requests, each tenant's for itself; ``most`` tokens in all.

    A tenant has two texts. New requests go into the younger one, and when that would be more than half of what fits,
    a new one is begun and the older forgotten. Where tenants together hold too much, the one that finished nothing
    for the longest time is forgotten whole.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._texts: dict[str, list[SuffixText]] = {}  # by tenant, the latest to finish last: younger, older
        self._documents = 0

    def __len__(self) -> int:
        """Tokens kept."""
        return sum(len(text) for texts in self._texts.values() for text in texts)

    def texts(self, tenant: str) -> list[SuffixText]:
        """What this tenant's requests left."""
        return list(self._texts.get(tenant, ()))

    def add(self, tenant: str, tokens: Sequence[int]) -> None:
        """Keep a finished request."""
        kept = tokens[-max(1, self._most // 2 - 1) :]
        texts = self._texts.pop(tenant, [])
        if not texts or len(texts[0]) + len(kept) + 1 > self._most // 2:
            texts = [SuffixText(), *texts[:1]]
        self._documents += 1
        _append(texts[0], kept, self._documents)
        self._texts[tenant] = texts
        while len(self) > self._most and len(self._texts) > 1:
            del self._texts[next(iter(self._texts))]


def _append(text: SuffixText, tokens: Sequence[int], number: int) -> None:
    """A document, and a mark behind it that no token equals and that does not occur again."""
    for token in tokens:
        text.append(token)
    text.append(-number)


def read_corpus(path: str, most: int, parts: Parts) -> SuffixText:
    """The text of a file, or of all files below a directory in the order of their names, as ``most`` of the target's
    tokens at the most. Files that are not UTF-8 are left out. Raises ParameterError when that leaves nothing."""
    if parts.target_model is None:
        raise DrafterError("lookup's corpus needs the target's tokenizer: build it with a loaded target model")
    text = SuffixText()
    for number, content in enumerate(_contents(Path(path)), start=1):
        room = most - len(text)
        if room <= 0:
            logger.warning("lookup's corpus %s is longer than %d tokens: the rest is left out", path, most)
            break
        _append(text, parts.target_model.tokenizer.encode(content, add_special=False)[:room], number)
    if not text.tokens:
        raise ParameterError(f"lookup's corpus {path!r} has no text: name a directory of UTF-8 files, or one file")
    return text


def _contents(path: Path) -> Iterator[str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        try:
            content = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if content:
            yield content
