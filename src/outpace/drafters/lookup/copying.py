"""Following an output that copies a text and edits it on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CERTAIN = 3  # tokens in a row that make sure the copy was found again; chosen by hand
_TAIL = 3  # latest tokens of the output that are looked for, at most; chosen by hand
_LONGEST = 8  # tokens of a replacement that is remembered, at most; chosen by hand


@dataclass
class _Edit:
    old: list[int]
    new: list[int]
    credit: int = 1  # how much oftener it held than not; at 0 it is forgotten


class EditedCopy:
    """Aligns an output with the ``source`` that it copies, from the source's ``place`` on.

    ``run`` counts the tokens that agreed since the last difference. Below 0 the copy is lost: minus the tokens since
    then. A lost copy is taken to go on one token further for each of them, as if one token replaced one. Meanwhile the
    latest k tokens of the output are searched for behind the place where the two parted, up to 8^k / 2 tokens away.
    About 8 tokens are as common as line ends and brackets, so chance would show k of them once in 8^k places. Where
    they are found, the copy goes on. What was replaced by what is remembered and expected again: a name that changes
    throughout a file costs one rejection.
    """

    def __init__(self, source: Sequence[int], place: int = 0, run: int = 0) -> None:
        self._source, self.place, self.run = source, place, run
        self.credit = run  # like run, but halved at a difference: how well this copy has served
        self._offset = 0  # tokens that have come of the replacement at ``place``
        self._edits: dict[int, _Edit] = {}  # by the first token of what is replaced
        self._since: list[int] = []  # the output since the two parted, until it is certain where the copy goes on
        self._parted = 0  # the place where they did
        self._again = (0, 0)  # where the copy is thought to go on: in the source, and in the tokens since

    @property
    def lost(self) -> int:
        """Tokens since the copy was lost; 0 while it is followed."""
        return max(0, -self.run)

    def push(self, token: int) -> None:
        """Take the next token of the output."""
        if self._since:
            self._since.append(token)
        edit = self._edit(self.place)
        step = self._step(self.place, self._offset)
        if step is not None and step[0] == token:
            _, self.place, self._offset = step
            if edit is not None and self._offset == 0:
                edit.credit = min(edit.credit + 1, 3)
        elif edit is not None and self._offset == 0 and self._source[self.place] == token:
            edit.credit -= 1  # it was not replaced
            if edit.credit == 0:
                del self._edits[token]
            self.place += 1
        else:
            self._part(token)
            return
        self.run = max(self.run, 0) + 1
        self.credit += 1
        if self._since and self.run >= _CERTAIN:
            self._remember()
            self._since = []

    def continuation(self, count: int) -> list[int]:
        """The ``count`` tokens expected next; fewer at the source's end."""
        tokens: list[int] = []
        place, offset = self.place, self._offset
        while len(tokens) < count and (step := self._step(place, offset)) is not None:
            token, place, offset = step
            tokens.append(token)
        return tokens

    def _edit(self, place: int) -> _Edit | None:
        """The replacement that applies there."""
        edit = self._edits.get(self._source[place]) if self._edits and place < len(self._source) else None
        return edit if edit is not None and list(self._source[place : place + len(edit.old)]) == edit.old else None

    def _step(self, place: int, offset: int) -> tuple[int, int, int] | None:
        """The token expected there, and the place and offset behind it; None at the source's end."""
        if place >= len(self._source):
            return None
        edit = self._edit(place)
        if edit is None:
            return self._source[place], place + 1, 0
        return (edit.new[offset], *((place, offset + 1) if offset + 1 < len(edit.new) else (place + len(edit.old), 0)))

    def _part(self, token: int) -> None:
        """The output goes another way than the source; find where they meet again."""
        if not self._since:
            edit = self._edit(self.place)
            self._parted, self._since = self.place, [*(edit.new[: self._offset] if edit else []), token]
            self.credit //= 2
        self.run, self._offset = min(self.run, 0) - 1, 0
        for size in range(min(_TAIL, len(self._since)), 0, -1):
            place = self._find(self._since[-size:], self._parted + 8**size // 2)
            if place is not None:
                self._again = (place, len(self._since) - size)
                self.place, self.run = place + size, size
                return
        self.place = self._parted + len(self._since)
        self._again = (self.place, len(self._since))

    def _find(self, tail: Sequence[int], most: int) -> int | None:
        """The first place from where they parted, up to ``most``, that reads ``tail`` and goes on."""
        source, place = self._source, self._parted
        stop = min(most + 1, len(source) - len(tail))
        while place < stop:
            try:
                place = source.index(tail[0], place, stop)
            except ValueError:
                return None
            if list(source[place : place + len(tail)]) == list(tail):
                return place
            place += 1
        return None

    def _remember(self) -> None:
        place, taken = self._again
        old, new = list(self._source[self._parted : place]), self._since[:taken]
        if 0 < len(old) <= _LONGEST and 0 < len(new) <= _LONGEST:
            self._edits[old[0]] = _Edit(old, new)
