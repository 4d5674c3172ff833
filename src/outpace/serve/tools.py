"""Calls of functions in an answer: JSON between ``<tool_call>`` and ``</tool_call>``, as Qwen's templates teach it."""

from __future__ import annotations

import json
import uuid

from .bodies import Call

BEGIN, END = "<tool_call>", "</tool_call>"


class CallReader:
    """Divides an answer, piece by piece, into its text and its calls. What looks like a call but is none stays text;
    space around calls goes."""

    def __init__(self) -> None:
        self._held = ""  # not yet known to be text or call
        self._inside = False
        self.calls = 0

    def push(self, piece: str, final: bool = False) -> tuple[str, list[Call]]:
        """Text and calls that are certain with this piece; ``final``: nothing follows it."""
        self._held += piece
        text, calls = "", []
        while True:
            mark = END if self._inside else BEGIN
            place = self._held.find(mark)
            if place < 0 and not (final and self._inside):
                break
            body, self._held = (self._held, "") if place < 0 else (self._held[:place], self._held[place + len(mark) :])
            if not self._inside:
                text += self._spaced(body.rstrip())
                self._inside = True
                continue
            self._inside = False
            call = self._call(body)
            if call is not None:
                calls.append(call)
            else:
                text += f"{BEGIN}{body}{mark if place >= 0 else ''}"
        if not self._inside:
            keep = 0 if final else self._undecided()
            text += self._spaced(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return text, calls

    def _spaced(self, text: str) -> str:
        """``text``, without the space that separates calls."""
        return text if not self.calls else text if text.strip() else ""

    def _undecided(self) -> int:
        """How much of the end may yet turn out to be space before a call, or the first part of its mark."""
        size = next((n for n in range(len(BEGIN) - 1, 0, -1) if self._held.endswith(BEGIN[:n])), 0)
        before = self._held[: len(self._held) - size]
        return size + len(before) - len(before.rstrip())

    def _call(self, body: str) -> Call | None:
        try:
            value = json.loads(body)
            name, arguments = value["name"], value.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        call: Call = {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        self.calls += 1
        return call
