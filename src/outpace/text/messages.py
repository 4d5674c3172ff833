"""Keeping the text of messages apart from a chat template's own markers.

Once rendered, ``<|im_end|>`` written by the template and by a user look alike. So where a message spells a special
token, or could do so together with its neighbour, the template is rendered a second time, with a mark within each such
place of the messages. Without its marks the second text must be the first one: then the marks tell which special tokens
are the messages' text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..core.errors import TemplateError
from .tokenizer import Tokenizer

# A template may escape what is no letter, as JSON or Python would; digits go through everything.
_MARKS = ("\ufdd0", "58094713926")


def marked(tokenizer: Tokenizer, text: str, given: Any, render: Callable[[Any], str]) -> tuple[str, str | None]:
    """``text``, which is ``render(given)``, with a mark within each special token that is text of a message, and the
    mark; None where there is none. Raises TemplateError where the two cannot be told apart."""
    places = _Places(tokenizer)
    whole = any(places.whole(one) for one in _strings(given))
    if not whole and not any(places.partial(one) for one in _strings(given)):
        return text, None
    for mark in _MARKS:
        if mark in text:
            continue
        # A mark within a special token stops the template from finding it there, as some do; one before it does not.
        for inside in (True, False):
            try:
                again = render(_with_marks(given, mark, places, inside))
            except TemplateError:
                continue
            if again.replace(mark, "") == text:
                found = places.broken_up(text, _positions(again, mark), mark, inside)
                return found, None if found == text else mark
    if whole:
        raise TemplateError(
            "a message spells a special token, and the model's chat template changes it so that it cannot be told from "
            "the template's own: leave it out, or allow special tokens in messages"
        )
    return text, None


class _Places:
    """Where strings spell special tokens, or begin or end one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pattern = tokenizer.special_pattern
        names = [name for name in tokenizer.specials.values() if len(name) > 1]
        self._heads = {name[:size] for name in names for size in range(1, len(name))}
        self._tails = {name[size:] for name in names for size in range(1, len(name))}
        self._most = max(map(len, names), default=0)

    def whole(self, text: str) -> list[int]:
        """Where special tokens begin, also within each other."""
        found, at = [], 0
        while self._pattern is not None and (match := self._pattern.search(text, at)):
            found.append(match.start())
            at = match.start() + 1
        return found

    def partial(self, text: str) -> list[int]:
        """Places within special tokens that the text begins or ends, and its neighbours may complete."""
        sizes = range(1, min(self._most, len(text) + 1))
        ends = [len(text) - size + 1 for size in sizes if text[-size:] in self._heads]
        return ends + [size - 1 for size in sizes if text[:size] in self._tails]

    def broken_up(self, text: str, positions: Sequence[int], mark: str, inside: bool) -> str:
        """The text with a mark within each special token that has one of the positions in it, or at its start."""
        pieces, done, at, behind = [], 0, 0, 0
        while self._pattern is not None and (match := self._pattern.search(text, at)):
            start, end = match.span()
            if inside:
                ours = bisect_left(positions, end) > bisect_right(positions, start)
            else:
                ours = bisect_right(positions, start) > bisect_left(positions, start)
            if ours or start < behind:
                pieces += [text[done : start + 1], mark]
                done = at = start + 1
                behind = max(behind, end)
            else:
                at = end
        return "".join([*pieces, text[done:]])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _strings(key)
            yield from _strings(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _strings(one)


def _with_marks(value: Any, mark: str, places: _Places, inside: bool, part: bool = True) -> Any:
    """The value with marks in its strings. ``part``: also where a string holds a part of a special token only; not in
    names of fields and roles, which templates make special tokens of."""
    if isinstance(value, str):
        at = {place + inside for place in places.whole(value)} | set(places.partial(value) if inside and part else ())
        cuts = [0, *sorted(at), len(value)]
        return mark.join(value[a:b] for a, b in pairwise(cuts))
    if isinstance(value, Mapping):
        return {
            _with_marks(key, mark, places, inside, False): _with_marks(one, mark, places, inside, key != "role")
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_with_marks(one, mark, places, inside, part) for one in value]
    return value


def _positions(text: str, mark: str) -> list[int]:
    """The positions of marks in the text, counted without them."""
    positions: list[int] = []
    for piece in text.split(mark)[:-1]:
        positions.append((positions[-1] if positions else 0) + len(piece))
    return positions
