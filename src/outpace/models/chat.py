"""Chat templates, and the rules by which a prompt becomes ids with exactly one BOS.

Special tokens written inside a message (or a raw prompt) are parsed as special tokens, as in transformers and
llama.cpp: a template's own markers and a user's cannot be told apart once rendered. A server that must not let
users write them has to refuse such messages beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import ext, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..core.errors import ContextError, TemplateError
from .tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str, most: int | None = None) -> list[int]:
    """Ids of a text to be continued: what the tokenizer puts before a text (BOS, if it asks for it), and the text.

    A text that begins with the BOS marker itself gets no second one. EOS is never added, even by a tokenizer
    that would: there is nothing to continue after it. Raises ContextError for a text of surely more than ``most``
    tokens, without tokenizing all of it.
    """
    if most is not None and tokenizer.exceeds(text, most):
        raise ContextError(f"the prompt has more than {2 * most} tokens, but the model's context ends at {most}")
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
    most: int | None = None,
    **extra: Any,
) -> list[int]:
    """Ids of a conversation rendered by ``template``, BOS as in ``encode_prompt``: one, whether the template
    writes it or not, if the tokenizer asks for it. Raises TemplateError as ``render_chat`` does, ContextError as
    ``encode_prompt`` does."""
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
    return encode_prompt(tokenizer, text, most)


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

    ``template`` runs in a sandbox that cannot change what it is given. ``extra`` are further variables for it.
    Raises TemplateError with the template's own words when it refuses the messages (a system role, roles that do
    not alternate), and with the reason when it is broken.
    """
    if not template:
        raise TemplateError("the chat template is empty; give the prompt as text, or use a chat-tuned model")
    try:
        return _compiled(template).render(
            messages=[dict(message) for message in messages],
            bos_token=bos or "",
            eos_token=eos or "",
            add_generation_prompt=add_generation_prompt,
            tools=None if tools is None else list(tools),
            **extra,
        )
    except _RefusedError as refusal:
        raise TemplateError(f"the model's chat template refuses these messages: {refusal}") from None
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the model's chat template is broken, line {error.lineno}: {error.message}") from error
    except Exception as error:  # a template is a program: it may fail in any way on messages it did not expect
        raise TemplateError(f"the model's chat template fails on these messages: {error}") from error


class _RefusedError(Exception):
    """A template called raise_exception."""


class _Generation(ext.Extension):
    """``{% generation %}`` marks what training learns from; for rendering it is just its content."""

    tags = {"generation"}  # noqa: RUF012  (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment.from_string(template)


def _refuse(message: object) -> None:
    raise _RefusedError(str(message))


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as models saw it in training: letters of any script as they are, nothing escaped for HTML."""
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **options})
