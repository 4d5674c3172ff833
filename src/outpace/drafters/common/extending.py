"""Drafting behind tokens that another drafter has drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ...core.protocols import Session
from ...core.types import Proposal


class Start(NamedTuple):
    """Where a proposal begins in a tree that others have begun: behind ``path``, the tokens from the pending one
    down. ``node``: what the tree's next node is called, which keys the random draws of drawn tokens. ``siblings``:
    tokens that follow ``path`` already."""

    path: Sequence[int] = ()
    node: int = 0
    siblings: Sequence[int] = ()


@runtime_checkable
class Extends(Protocol):
    """A drafter that can go on where another one ended. ``observe`` then counts the path's tokens as nodes before
    its own, as if it had proposed them too."""

    def extend(self, sessions: Sequence[Session], starts: Sequence[Start], budgets: Sequence[int]) -> list[Proposal]:
        """As ``propose``, behind the starts: parents are numbered within the answer, -1 is the end of the path."""
