"""From committed tokens to text: stop strings, and what may be shown already."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol


class TextDecoder(Protocol):
    """An incremental detokenizer: text that is certain, what is held back, and the rest at the end."""

    def push(self, token: int) -> str: ...

    def held(self) -> str: ...

    def flush(self) -> str: ...


class TextState:
    """The text of one answer as it grows, cut at the first stop string.

    ``tokens`` counts those that the text needs: at a stop string, tokens lying wholly behind the cut are
    not counted, and the one that straddles it is. ``specials``: names of the tokens that the text leaves out; a stop
    string, or a part of it, may be such a name.
    """

    def __init__(self, decoder: TextDecoder, stops: Sequence[str], specials: Mapping[int, str] | None = None) -> None:
        self._decoder, self._stops = decoder, tuple(stops)
        self._named = _NamedStops(self._stops, specials or {})
        self._text = ""
        self._ends: list[int] = []  # length of the text after each token
        self._cut: int | None = None
        self._shown_text = self._shown_tokens = 0

    def push(self, token: int) -> bool:
        """Take one token; whether it completed a stop string."""
        before = len(self._text)
        self._text += self._decoder.push(token)
        self._ends.append(len(self._text))
        found = self._find_stop(before)
        if self._named.stops:
            named = self._named.find(token, self._text, self._decoder.held())
            if named is not None and (found is None or named < found):
                found = named
                self._text += self._decoder.flush()  # what stands before the special token is text now
                self._ends[-2:] = [len(self._text)] * len(self._ends[-2:])
        if found is not None:
            self._cut = found[1]
        return found is not None

    def finish(self) -> None:
        """No more tokens: whatever was held back is text now."""
        if self._cut is None:
            before = len(self._text)
            self._text += self._decoder.flush()
            found = self._find_stop(before)
            self._cut = None if found is None else found[1]

    def _find_stop(self, new: int) -> tuple[int, int] | None:
        """End and beginning of the stop string that is complete first, of those that end within the text from ``new``
        on: what it would be with one character a token, however the tokens split the text."""
        places = [(self._text.find(stop, max(0, new - len(stop) + 1)), len(stop)) for stop in self._stops]
        return min(((place + size, place) for place, size in places if place >= 0), default=None)

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
            end = max(self._shown_text, len(self._text) - self._held())
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
                return max(size, self._named.held(len(self._text)))
        return self._named.held(len(self._text))


_OTHER = "\udfff"  # a special token that no stop string names. Text never holds half a surrogate pair.


class _NamedStops:
    """Stop strings that hold names of special tokens, sought in the text with such tokens put in where they came, one
    character each. ``stops`` is empty where no stop string holds a name."""

    def __init__(self, stops: Sequence[str], specials: Mapping[int, str]) -> None:
        names = sorted({name for name in specials.values() if any(name in stop for stop in stops)}, key=len)
        letters = {name: chr(0xD800 + place) for place, name in enumerate(names[:0x7FF])}
        self.stops: list[str] = []
        if letters:
            pattern = re.compile("|".join(map(re.escape, reversed(letters))))  # of two names the longer one
            written = (pattern.sub(lambda found: letters[found[0]], stop) for stop in stops)
            self.stops = [new for new, old in zip(written, stops, strict=True) if new != old]
        self._letters = {token: letters.get(name, _OTHER) for token, name in specials.items()} if letters else {}
        self._most = max(map(len, self.stops), default=0)
        self._tail = ""  # the end of the text with the special tokens
        self._seen = 0  # characters of the text that were put into it

    def find(self, token: int, text: str, held: str) -> tuple[int, int] | None:
        """End and beginning, in the text, of a stop string that this token completes. ``held``: what the decoder holds
        back; a special token stands behind it."""
        letter = self._letters.get(token, "")
        if letter:
            text += held
        new = text[self._seen :] + letter
        self._seen = max(self._seen, len(text))
        old = len(self._tail)
        tail = self._tail + new
        places = [(tail.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self.stops]
        ends = [(place + len(stop), stop) for place, stop in places if place >= 0]
        self._tail = tail[-self._most :]
        if not ends:
            return None
        place, stop = min(ends)
        end = self._seen - _visible(tail[place:])
        return end, max(0, end - _visible(stop))

    def held(self, length: int) -> int:
        """Characters at the end of the text of this length that a stop string with names may still begin with."""
        for size in range(min(self._most - 1, len(self._tail)), 0, -1):
            end = self._tail[-size:]
            if any(stop.startswith(end) for stop in self.stops):
                return max(0, _visible(end) - (self._seen - length))
        return 0


def _visible(text: str) -> int:
    """Its characters without those that stand for special tokens."""
    return sum(not "\ud800" <= letter <= "\udfff" for letter in text)
