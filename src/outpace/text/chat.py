"""Chat templates, and the rules by which a prompt becomes ids with exactly one BOS.

A raw prompt's special tokens are parsed as such: whoever writes it writes the markers, too. The text of a message is
text: only the template's own markers become special tokens (see messages.py), unless asked otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ContextError, TemplateError
from .messages import marked
from .tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str, most: int | None = None) -> list[int]:
    """Ids of a text to be continued: what the tokenizer puts before a text (BOS, if it asks for it), and the text.

    A text that begins with the BOS marker itself gets no second one. EOS is never added, even by a tokenizer
    that would: there is nothing to continue after it. Raises ContextError for a text of surely more than ``most``
    tokens, without tokenizing all of it.
    """
    _check_length(tokenizer, text, most)
    return _with_bos(tokenizer, tokenizer.encode(text, add_special=False))


def _check_length(tokenizer: Tokenizer, text: str, most: int | None) -> None:
    if most is not None and tokenizer.exceeds(text, most):
        raise ContextError(f"the prompt has more than {2 * most} tokens, but the model's context ends at {most}")


def _with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
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
    special_tokens_in_messages: bool = False,
    most: int | None = None,
    **extra: Any,
) -> list[int]:
    """Ids of a conversation rendered by ``template``, BOS as in ``encode_prompt``: one, whether the template
    writes it or not, if the tokenizer asks for it.

    A special token that is spelled in ``messages`` or ``tools`` (contents, names, arguments, descriptions) is encoded
    as the text it is; with ``special_tokens_in_messages`` it becomes the token. Raises TemplateError as
    ``render_chat`` does, and where a template changes such text so that it cannot be told from its own; ContextError
    as ``encode_prompt`` does.
    """
    if template is None:
        raise TemplateError(
            "this model has no chat template, so it cannot take messages; give the prompt as text, or use a "
            "chat-tuned model"
        )

    def string(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.token(token_id)

    def render(given: Any) -> str:
        return render_chat(
            template,
            given["messages"],
            bos=string(tokenizer.bos),
            eos=string(tokenizer.eos),
            add_generation_prompt=add_generation_prompt,
            tools=given["tools"],
            **extra,
        )

    given = {"messages": messages, "tools": tools}
    text, mark = render(given), None
    if not special_tokens_in_messages:
        text, mark = marked(tokenizer, text, given, render)
    _check_length(tokenizer, text, most)
    return _with_bos(tokenizer, tokenizer.encode(text, add_special=False, mark=mark))


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
    from jinja2 import TemplateSyntaxError  # slow to import, and needed by messages only

    from .template import LimitError, RefusedError, run_template

    try:
        return run_template(template, variables)
    except RefusedError as refusal:
        raise TemplateError(f"the model's chat template refuses these messages: {refusal}") from None
    except LimitError as limit:
        raise TemplateError(f"the model's chat template was stopped: {limit}") from None
    except TemplateSyntaxError as error:
        raise TemplateError(f"the model's chat template is broken, line {error.lineno}: {error.message}") from error
    except Exception as error:  # a template is a program: it may fail in any way on messages it did not expect
        raise TemplateError(f"the model's chat template fails on these messages: {error}") from error
