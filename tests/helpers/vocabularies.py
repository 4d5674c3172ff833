"""The audit's tokenizers of a few letters, and drafts that know what is to come."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from outpace.audit.toy import LogitsOf, ToyRuntime
from outpace.audit.vocabularies import letters
from outpace.core.protocols import Parts, Runtime
from outpace.text.pairing import Encoder
from outpace.text.tokenizer import Tokenizer

__all__ = ["foreseeing", "letters", "parts", "scripted"]


def parts(target: Tokenizer, draft: Tokenizer, runtime: Runtime) -> Parts:
    """A draft of another vocabulary and its target, as a drafter is given them."""
    return Parts(
        target.size, draft=runtime, target_model=SimpleNamespace(tokenizer=target),
        draft_model=SimpleNamespace(tokenizer=draft),
    )  # fmt: skip


def foreseeing(draft: Tokenizer, text: str) -> ToyRuntime:
    """A draft model that goes on with ``text`` from wherever its own prefix ends in it."""

    encoder = Encoder(draft)

    def logits_of(prefix: Sequence[int]) -> np.ndarray:
        known = b"".join(map(draft.token_bytes, prefix)).decode(errors="replace")
        rest = encoder.go_on(text[len(known) :]) if text.startswith(known) else []
        logits = np.zeros(draft.size, dtype=np.float64)
        logits[rest[0] if rest else 0] = 20.0
        return logits

    return ToyRuntime(logits_of, draft.size)


def scripted(tokens: Sequence[int], vocab_size: int) -> LogitsOf:
    """A target that says these tokens, whatever the sampling: all else is far below."""

    def logits_of(prefix: Sequence[int]) -> np.ndarray:
        logits = np.zeros(vocab_size, dtype=np.float64)
        logits[tokens[len(prefix)] if len(prefix) < len(tokens) else 0] = 40.0
        return logits

    return logits_of
