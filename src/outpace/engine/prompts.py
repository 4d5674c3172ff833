"""From prompts to token ids, and what a prompt may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ContextError, ParameterError
from ..runtimes.loading import LoadedModel
from ..text.chat import encode_chat, encode_prompt

Message = Mapping[str, object]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text as it stands, token ids, or chat messages ``{"role": ..., "content": ...}``."""


def encode(
    target: LoadedModel,
    prompt: Prompt,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    most: int | None = None,
    special_tokens_in_messages: bool = False,
) -> list[int]:
    """See :meth:`outpace.engine.engine.Engine.encode`."""
    tokenizer = target.tokenizer
    _check_kind(prompt)
    if isinstance(prompt, str):
        ids = encode_prompt(tokenizer, prompt, most)
    elif prompt and isinstance(prompt[0], Mapping):
        messages: list[Message] = list(prompt)  # type: ignore[arg-type]
        ids = encode_chat(
            tokenizer, target.chat_template, messages, tools=tools, most=most,
            special_tokens_in_messages=special_tokens_in_messages,
        )  # fmt: skip
    else:
        _check_length(len(prompt), most)
        ids = checked_tokens(prompt, tokenizer.size, "prompt")  # type: ignore[arg-type]
    if not ids:
        without = ", and this model's tokenizer has no token to begin with" if isinstance(prompt, str) else ""
        raise ParameterError(f"the prompt is empty{without}")
    _check_length(len(ids), most)
    return ids


def is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Whether it is one prompt, and no list of them. Raises ParameterError for what is neither."""
    _check_kind(prompt)
    # An empty list is an empty batch: there is nothing to say which other kind it was meant to be.
    return isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], (int, Mapping)))


def checked_tokens(tokens: Sequence[int], size: int, where: str) -> list[int]:
    """A list of them. Raises ParameterError for the first that is no id of the vocabulary."""
    whole = list(tokens)
    if set(map(type, whole)) == {int} and min(whole) >= 0 and max(whole) < size:  # no step of Python for each
        return whole
    for token in whole:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            raise ParameterError(f"{where} token {token!r} is not an id of the vocabulary of {size}")
    return whole


def _check_kind(prompt: object) -> None:
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        kind = type(prompt).__name__
        raise ParameterError(f"a prompt is text, token ids, chat messages or a list of these, not {kind}")


def _check_length(tokens: int, most: int | None) -> None:
    if most is not None and tokens > most:
        raise ContextError(f"the prompt has {tokens} tokens, but the model's context ends at {most}")
