"""What a template from a model's file may take of time and memory."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc

import pytest

from outpace.core.errors import TemplateError
from outpace.text import template as limits
from outpace.text.chat import render_chat

USER = [{"role": "user", "content": "hi"}]
DOUBLED = "{% set ns = namespace(x=START) %}{% for i in range(99) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x SHOWN}}"


def doubled(start, step, shown=""):
    return DOUBLED.replace("START", start).replace("STEP", step).replace("SHOWN", shown)


GREEDY = {
    "long loop": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loop in a recursive loop": "{% for i in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion that gathers": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}{% endmacro %}"
        "{{ f(60, 1) }}"
    ),
    "times": "{{ 'a' * 10**10 }}",
    "times in the other order": "{{ 10**10 * 'a' }}",
    "list times": "{{ ([0] * 10**10) | length }}",
    "list of lists times": "{{ [messages] * 10**7 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "products": doubled("7", "ns.x * ns.x"),
    "sums": doubled("'ab'", "ns.x + ns.x"),
    "joints": doubled("'ab'", "ns.x ~ ns.x"),
    "lists": doubled("[1]", "ns.x + ns.x"),
    "nested lists": doubled("[1]", "[ns.x, ns.x]", "| tojson"),
    "nested tuples": doubled("(1,)", "(ns.x, ns.x)", "| string"),
    "nested dicts": doubled("{}", "{'a': ns.x, 'b': ns.x}"),
    "dict()": doubled("{}", "dict(a=ns.x, b=ns.x)"),
    "joined": doubled("'ab'", "[ns.x, ns.x] | join"),
    "joined by method": doubled("'ab'", "'-'.join([ns.x, ns.x])"),
    "formatted": doubled("'ab'", "'%s%s' | format(ns.x, ns.x)"),
    "percent": doubled("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "str.format": doubled("'ab'", "'{0}{0}'.format(ns.x)"),
    "replaced": doubled("'ab'", "ns.x | replace('a', 'aa')"),
    "replaced by method": doubled("'ab'", "ns.x.replace('a', 'aa')"),
    "backslashes": doubled("'\\\\'", "ns.x | tojson"),
    "block set": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + doubled("'ab'", "f(ns.x)"),
    "filter block": "{% filter center(10**10) %}a{% endfilter %}",
    "center": "{{ 'a' | center(10**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "indent": "{{ 'a\n' | indent(10**10) }}",
    "json indent": "{{ messages | tojson(indent=10**10) }}",
    "batch": "{{ [1] | batch(10**10, 0) | list }}",
    "slice": "{{ [1] | slice(10**10) | list }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "sum of lists": "{{ ([[1] * 99] * 9999) | sum(start=[]) | length }}",
    "width": "{{ '%9999999999d' % 1 }}",
    "width worked out": "{{ '%*d' % (10**10, 1) }}",
    "width of format": "{{ '{:>9999999999}'.format(1) }}",
    "width of format worked out": "{{ '{:{}}'.format(1, 10**10) }}",
    "mapped": "{{ ['a'] | map('center', 10**10) | list }}",
    "joined and mapped": "{{ [['a' * 99999] * 40] | map('join', 'b' * 99999) | list }}",
    "to_bytes": "{{ (5).to_bytes(10**10, 'big') }}",
    "translate": "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "lipsum": "{{ lipsum(n=10**8) }}",
    "pprint": doubled("'\\\\'", "ns.x | pprint"),
    "namespace of namespaces": "{% set ns = namespace(x=1) %}" + doubled("1", "namespace(a=ns.x, b=ns.x)") * 2
    + "{% for i in range(10**9) %}{% endfor %}",
    "long": "{{ 1 }}" * 100_000,
    "output": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(limits, "STEPS", 100_000)
    monkeypatch.setattr(limits, "SECONDS", 1.5)
    monkeypatch.setattr(limits, "CHARACTERS", 1 << 18)


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_a_greedy_template_is_stopped(source):
    """In any thread: soon, with little memory, with an error that says it was the template."""
    caught: list[Exception] = []

    def run():
        try:
            render_chat(source, USER, bos=None, eos=None)
        except TemplateError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    tracemalloc.start()
    began = time.monotonic()
    thread.start()
    thread.join(20)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not thread.is_alive() and time.monotonic() - began < 15
    assert memory < 60 << 20
    assert "the model's chat template" in str(caught[0])


def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.05)
    monkeypatch.setattr(limits, "STEPS", 1 << 60)
    with pytest.raises(TemplateError, match=r"was stopped: it takes longer than 0.05 s"):
        render_chat(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", USER, bos=None, eos=None
        )


def test_limits_grow_with_the_messages():
    """A long conversation is no greed: nor are a few thousand messages."""
    source = "{% for m in messages %}{{ '<' ~ m.role + '>' + m['content'] | trim }}{% endfor %}{{ messages | tojson }}"
    long = [{"role": "user", "content": "é" * 3_000_000}]
    assert len(render_chat(source, long, bos=None, eos=None)) > 6_000_000
    many = [{"role": "user", "content": "x"}] * 5_000
    assert render_chat(source, many, bos=None, eos=None).count("<user>x") == 5_000


def test_what_limited_templates_still_do():
    """Each operation that is counted gives what Jinja gives."""
    source = (
        "{% set ns = namespace(n=0, l=[]) %}{% for a, b in {'x': 1, 'y': 2}.items() %}{% set ns.n = ns.n + b %}"
        "{% set ns.l = ns.l + [a] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}|"
        "{{ ns.l | join('-') }}|{{ '%s %5.1f' % ('a', 2) }}|{{ '{:>3}{x}'.format(1, x=2) }}|{{ 'ab' * 2 ~ 3 ~ [1] }}|"
        "{{ [1, 2, 3] | batch(2) | list }}|{{ [1, 2, 3] | sum }}|{{ 'a\nb' | indent(2) }}|{{ 'aXb'.replace('X', '') }}|"
        "{{ 'aXb' | replace('X', 'yy') }}|{{ (1, 2) }}|{{ [3, 1] | sort | list }}|"
        "{{ messages | map(attribute='role') | list }}|"
        "{{ {'a': [1, {}]} | tojson }}|{{ [1] | tojson(indent=2) }}|{{ 7 // 2 ** 1 }}|{{ 2.567 | round(1) }}|"
        "{% for c in 'ab' recursive %}{{ c }}{% else %}none{% endfor %}"
        "{% for c in missing %}{% else %}none{% endfor %}|"
        "{% filter upper %}abc{% endfilter %}|{% set t %}in{% endset %}{{ t }}|{{ 'b' in ['a', 'b'] }}|"
        "{{ 'a' | center(3) }}."
    )
    expected = (
        "1/2,2/2|x-y|a   2.0|  12|abab3[1]|[[1, 2], [3]]|6|a\n  b|ab|ayyb|(1, 2)|[1, 3]|['user']|"
        + json.dumps({"a": [1, {}]})
        + "|[\n  1\n]|3|2.6|abnone|ABC|in|True| a ."
    )
    assert render_chat(source, USER, bos=None, eos=None) == expected
