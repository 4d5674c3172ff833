"""Chat templates and the one-BOS rule."""

from __future__ import annotations

import pytest
from tests.helpers.tiny_models import BOS, byte_level_tokenizer
from tokenizers.processors import TemplateProcessing

from outpace.core.errors import TemplateError
from outpace.text.chat import encode_chat, encode_prompt, render_chat
from outpace.text.tokenizer import Tokenizer

USER = [{"role": "user", "content": "hi"}]


def _tokenizer(add_bos: bool, **options) -> Tokenizer:
    backend = byte_level_tokenizer()
    return Tokenizer(backend, bos=backend.token_to_id(BOS), eos=backend.token_to_id("</s>"), add_bos=add_bos, **options)


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_exactly_one_bos(template, add_bos):
    tokenizer = _tokenizer(add_bos)
    ids = encode_chat(tokenizer, template, USER)
    assert ids.count(tokenizer.bos) == (1 if add_bos or "bos_token" in template else 0)
    assert tokenizer.decode(ids) == "hi"


def test_post_processor_that_adds_bos_counts_once():
    backend = byte_level_tokenizer()
    bos = backend.token_to_id(BOS)
    backend.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    tokenizer = Tokenizer(backend, bos=bos, add_bos=True)
    assert tokenizer.encode("hi", True) == [bos, *tokenizer.encode("hi", False)]
    assert encode_chat(tokenizer, "{{ bos_token }}hi", USER) == tokenizer.encode("hi", True)
    assert encode_chat(tokenizer, "hi", USER) == tokenizer.encode("hi", True)


def test_raw_text_that_begins_with_bos():
    tokenizer = _tokenizer(True)
    assert encode_prompt(tokenizer, f"{BOS}hi") == encode_prompt(tokenizer, "hi")
    assert encode_prompt(tokenizer, "hi")[0] == tokenizer.bos
    # A marker further in is the user's own and stays.
    assert encode_prompt(tokenizer, f"hi{BOS}").count(tokenizer.bos) == 2


def test_empty_prompt_is_bos_or_nothing():
    assert encode_prompt(_tokenizer(True), "") == [_tokenizer(True).bos]
    assert encode_prompt(_tokenizer(False), "") == []


def test_eos_is_never_put_behind_a_prompt():
    tokenizer = _tokenizer(True, add_eos=True)
    assert tokenizer.encode("hi", True)[-1] == tokenizer.eos
    assert tokenizer.eos not in encode_prompt(tokenizer, "hi")


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
            [{"role": "system", "content": "x"}, *USER],
            "System role not supported",
        ),
        (
            (
                "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
                "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}{% endfor %}"
            ),
            [*USER, *USER],
            "Roles must alternate user/assistant",
        ),
        ("{% if %}", USER, "broken, line 1"),
        ("{{ messages[7].content.upper() }}", USER, "fails on these messages"),
        ("{{ 'a' + 1 }}", USER, "fails on these messages"),
        ("{{ messages.append(1) }}", USER, "fails on these messages"),
        ("{{ ''.__class__.__mro__ }}", USER, "fails on these messages"),
        ("", USER, "empty"),
    ],
)
def test_refusals_carry_the_reason(template, messages, words):
    with pytest.raises(TemplateError, match=words):
        render_chat(template, messages, bos=None, eos=None)


def test_a_model_without_a_template():
    with pytest.raises(TemplateError, match="no chat template"):
        encode_chat(_tokenizer(True), None, USER)


def test_what_templates_may_use():
    template = (
        "{%- for m in messages %}\n"
        "    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "{{ m.role }}={{ m.content }};\n"
        "{% generation %}[{{ m.content }}]{% endgeneration %}\n"
        "{%- endfor %}\n"
        "{{ tools | tojson }} {{ strftime_now('%Y') | length }} {{ flavour }}{{ eos_token }}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    messages = [{"role": "user", "content": f"é{i}"} for i in range(4)]
    tools = [{"name": "<日本>"}]
    text = render_chat(template, messages, bos=None, eos="</s>", tools=tools, flavour="mint")
    assert text == 'user=é0;\n[é0]user=é1;\n[é1][{"name": "<日本>"}] 4 mint</s>>'
    assert not render_chat(template, messages, bos=None, eos="", add_generation_prompt=False).endswith(">")


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": "hi"}]
    render_chat("{% set messages = messages[1:] %}{{ messages | length }}", messages, bos=None, eos=None)
    assert messages == [{"role": "user", "content": "hi"}]
