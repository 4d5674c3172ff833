"""From committed tokens to text: stop strings, and what may be shown already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """An incremental detokenizer: text that is certain, and the rest at the end."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class TextState:
    """The text of one answer as it grows, cut at the first stop string.

    ``tokens`` counts those that the text needs: at a stop string, tokens lying wholly behind the cut are
    not counted, and the one that straddles it is.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str]) -> None:
        self._decoder, self._stops = decoder, tuple(stops)
        self._text = ""
        self._ends: list[int] = []  # length of the text after each token
        self._cut: int | None = None
        self._shown_text = self._shown_tokens = 0

    def push(self, token: int) -> bool:
        """Take one token; whether it completed a stop string."""
        self._text += self._decoder.push(token)
        self._ends.append(len(self._text))
        return self._find_stop(self._ends[-2] if len(self._ends) > 1 else 0)

    def finish(self) -> None:
        """No more tokens: whatever was held back is text now."""
        if self._cut is None:
            before = len(self._text)
            self._text += self._decoder.flush()
            self._find_stop(before)

    def _find_stop(self, new: int) -> bool:
        """Cut at the stop string that is complete first, of those that end within the text from ``new`` on:
        what it would be with one character a token, however the tokens split the text."""
        places = [(self._text.find(stop, max(0, new - len(stop) + 1)), len(stop)) for stop in self._stops]
        found = [(place + size, place) for place, size in places if place >= 0]
        if found:
            self._cut = min(found)[1]
        return bool(found)

    @property
    def text(self) -> str:
        """The text so far, up to the stop string."""
        return self._text if self._cut is None else self._text[: self._cut]

    @property
    def tokens(self) -> int:
        """How many of the tokens pushed belong to the answer."""
        if self._cut is None:
            return len(self._ends)
        if self._cut == 0:
            return 0
        last = len(self._ends) - 1  # a cut beyond it lies in what the decoder gave at the end
        return next((i for i, end in enumerate(self._ends) if end >= self._cut), last) + 1

    def take(self, final: bool = False) -> tuple[str, int]:
        """New text that may be shown, and how many new tokens it uses. Text that could still become a
        stop string is held back until it cannot, or until ``final``."""
        if final or self._cut is not None:
            end, tokens = len(self.text), self.tokens
        else:
            end = len(self._text) - self._held()
            # A token that added no text may begin a character that a stop string forbids: it waits for the next.
            tokens = self._shown_tokens
            for i in range(tokens, len(self._ends)):
                if self._ends[i] > end:
                    break
                if self._ends[i] > (self._ends[i - 1] if i else 0):
                    tokens = i + 1
        piece = self._text[self._shown_text : end]
        count = max(0, tokens - self._shown_tokens)
        self._shown_text, self._shown_tokens = end, self._shown_tokens + count
        return piece, count

    def _held(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        tail = self._text[self._shown_text :]
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(tail)), 0, -1):
            if any(stop.startswith(tail[-size:]) for stop in self._stops):
                return size
        return 0
