"""Whether a draft may speak for a target: the same id must mean the same token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.errors import VocabularyError


class HasTokens(Protocol):
    """The part of a tokenizer that pairing looks at."""

    @property
    def size(self) -> int: ...

    def tokens(self) -> Sequence[str | None]: ...


def check_pair(target: HasTokens, draft: HasTokens, target_name: str, draft_name: str) -> None:
    """Raise VocabularyError unless both tokenizers have the same token at every id.

    Compares the tokenizers, not the models' rows: embeddings may be padded to different sizes. The message
    names both sizes and the first id that differs.
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
    raise VocabularyError(f"these models do not share a vocabulary: {sizes}; {difference}. Choose another draft.")
