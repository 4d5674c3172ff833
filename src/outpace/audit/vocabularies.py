"""Tokenizers of a few letters, and a toy draft that has not the target's."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ..drafters.common.other_text import OtherDraft
from ..text.tokenizer import Tokenizer
from .toy import LogitsOf, ToyRuntime


def letters(*words: str) -> Tokenizer:
    """A byte-level tokenizer of these words, ids in their order; longer words are merges of their letters in order."""
    vocab = {word: index for index, word in enumerate(words)}
    merges = [(word[:-1], word[-1]) for word in words if len(word) > 1]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


OURS = letters("a", "b", "c")
THEIRS = letters("x", "c", "cc", "a")  # other ids, one letter that we lack and one fewer, one that is two of ours


def other_draft(logits_of: LogitsOf) -> OtherDraft:
    """A draft of :data:`THEIRS` for a target of :data:`OURS`."""
    return OtherDraft(ToyRuntime(logits_of, THEIRS.size), OURS, THEIRS)
