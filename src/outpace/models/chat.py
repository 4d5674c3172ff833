"""Chat templates, and the rules by which a prompt becomes ids with exactly one BOS.

Special tokens written inside a message (or a raw prompt) are parsed as special tokens, as in transformers and
llama.cpp: a template's own markers and a user's cannot be told apart once rendered. A server that must not let
users write them has to refuse such messages beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from ..core.errors import TemplateError
from .template import LimitError, RefusedError, run_template
from .tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text to be continued: what the tokenizer puts before a text (BOS, if it asks for it), and the text.

    A text that begins with the BOS marker itself gets no second one. EOS is never added, even by a tokenizer
    that would: there is nothing to continue after it.
    """
    ids = tokenizer.encode(text, add_special=False)
    if tokenizer.bos is not None and ids[:1] == [tokenizer.bos]:
        return ids
    return [*tokenizer.prefix, *ids]


def encode_chat(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> list[int]:
    """Ids of a conversation rendered by ``template``, BOS as in ``encode_prompt``: one, whether the template
    writes it or not, if the tokenizer asks for it. Raises TemplateError as ``render_chat`` does."""
    if template is None:
        raise TemplateError(
            "this model has no chat template, so it cannot take messages; give the prompt as text, or use a "
            "chat-tuned model"
        )

    def string(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.token(token_id)

    text = render_chat(
        template,
        messages,
        bos=string(tokenizer.bos),
        eos=string(tokenizer.eos),
        add_generation_prompt=add_generation_prompt,
        tools=tools,
        **extra,
    )
    return encode_prompt(tokenizer, text)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos: str | None,
    eos: str | None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> str:
    """The conversation as the model was trained to read it.

    ``template`` runs in a sandbox that cannot change what it is given, within limits of time and memory (see
    template.py). ``extra`` are further variables for it. Raises TemplateError with the template's own words when it
    refuses the messages (a system role, roles that do not alternate), and with the reason when it is broken, fails or
    takes more than it may.
    """
    if not template:
        raise TemplateError("the chat template is empty; give the prompt as text, or use a chat-tuned model")
    variables = {
        "messages": [dict(message) for message in messages],
        "bos_token": bos or "",
        "eos_token": eos or "",
        "add_generation_prompt": add_generation_prompt,
        "tools": None if tools is None else list(tools),
        **extra,
    }
    try:
        return run_template(template, variables)
    except RefusedError as refusal:
        raise TemplateError(f"the model's chat template refuses these messages: {refusal}") from None
    except LimitError as limit:
        raise TemplateError(f"the model's chat template was stopped: {limit}") from None
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the model's chat template is broken, line {error.lineno}: {error.message}") from error
    except Exception as error:  # a template is a program: it may fail in any way on messages it did not expect
        raise TemplateError(f"the model's chat template fails on these messages: {error}") from error
