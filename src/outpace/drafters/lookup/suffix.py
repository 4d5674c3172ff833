"""Where the end of one text occurs in another: a suffix automaton (Blumer et al., 1985), grown token by token.

For example, the text is ``5 6 7 5 6``. Its suffix ``5 6`` occurred before, at the places 0 and 1. The longer suffix
``7 5 6`` did not. So ``matched`` is 2, and ``place`` is 2: there is what followed, 7. Lookup drafts 7, and behind it
5 and 6 from the places 3 and 4. If the next token is 7, the suffix ``5 6 7`` occurred before: ``matched`` and
``place`` are 3. If it is 9 instead, which is new, ``matched`` is 0 and nothing is drafted.
"""

from __future__ import annotations

from array import array

_CLIMB = 64  # shorter suffixes that learn of a new occurrence, per token; chosen by hand: only a loop has more


class SuffixText:
    """A growing text that knows the longest suffix of itself that occurred before, and where last.

    ``append`` costs amortized O(1), and about 0.1 kB stays. ``matched`` is the length of the longest suffix that
    occurs earlier, 0 when none does, and ``place`` the place after its latest earlier occurrence. Where more than
    64 suffixes of a text differ in where they occur, the shorter ones may be given an older occurrence.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.matched = self.place = 0
        # Of each state, a set of substrings that occur at the same places: the state of their longest proper suffix
        # that occurs elsewhere too, the length of the longest, and the place after the latest occurrence.
        self.links, self.lengths, self.ends = array("i", [-1]), array("i", [0]), array("i", [0])
        # How they go on. Most states know one token only: a dictionary for each would be most of the memory.
        self._token, self._next = array("i", [0]), array("i", [0])
        self._more: dict[int, dict[int, int]] = {}
        self._whole = 0  # the state of the whole text

    def __len__(self) -> int:
        return len(self.tokens)

    def step(self, state: int, token: int) -> int:
        """The state of what ``state`` holds with ``token`` behind it; 0 when that does not occur."""
        if self._token[state] == token and self._next[state]:
            return self._next[state]
        more = self._more.get(state)
        return more.get(token, 0) if more is not None else 0

    def append(self, token: int) -> None:
        """Add one token."""
        self.tokens.append(token)
        end = len(self.tokens)
        new = self._state(0, end, end)
        state, self._whole = self._whole, new
        while state >= 0 and not (target := self.step(state, token)):
            self._set(state, token, new)
            state = self.links[state]
        if state >= 0:
            self.links[new] = self._cut(target, state, token)
        state = self.links[new]
        self.matched, self.place = self.lengths[state], self.ends[state]
        for _ in range(_CLIMB):
            if state <= 0:
                break
            self.ends[state] = end
            state = self.links[state]

    def _cut(self, target: int, state: int, token: int) -> int:
        """The state of the longest string of ``state`` with ``token`` behind it, which leads to ``target``: a state
        of its own from now on, since shorter strings there have just occurred where longer ones did not."""
        length = self.lengths[state] + 1
        if self.lengths[target] == length:
            return target
        split = self._state(self.links[target], length, self.ends[target])
        self._token[split], self._next[split] = self._token[target], self._next[target]
        if target in self._more:
            self._more[split] = dict(self._more[target])
        self.links[target] = split
        while state >= 0 and self.step(state, token) == target:
            self._set(state, token, split)
            state = self.links[state]
        return split

    def _set(self, state: int, token: int, target: int) -> None:
        if not self._next[state] or self._token[state] == token:
            self._token[state], self._next[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target

    def _state(self, link: int, length: int, end: int) -> int:
        self.links.append(link)
        self.lengths.append(length)
        self.ends.append(end)
        self._token.append(0)
        self._next.append(0)
        return len(self.links) - 1

    def cursor(self) -> Cursor:
        """A cursor that has read the whole text, at the place where the text's end occurred before."""
        cursor = Cursor(self)
        cursor.state, cursor.matched = max(self.links[self._whole], 0), self.matched
        return cursor


class Cursor:
    """Reads a stream of tokens, and knows its longest suffix that occurs in a :class:`SuffixText`, which may grow."""

    def __init__(self, text: SuffixText) -> None:
        self.text = text
        self.state = self.matched = 0

    @property
    def place(self) -> int:
        """The place in the text after the latest occurrence."""
        self._settle()
        return self.text.ends[self.state]

    def push(self, token: int) -> None:
        """Read one token; amortized O(1)."""
        self._settle()
        text = self.text
        while not (target := text.step(self.state, token)):
            if self.state == 0:
                return
            self.state = text.links[self.state]
            self.matched = text.lengths[self.state]
        self.state, self.matched = target, self.matched + 1

    def _settle(self) -> None:
        """Where the text has grown, shorter strings may have been split off from their state."""
        text = self.text
        while self.state and text.lengths[text.links[self.state]] >= self.matched:
            self.state = text.links[self.state]
