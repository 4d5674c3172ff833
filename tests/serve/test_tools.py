"""Calls of functions: what the template shows the model, and what is read from its answer."""

import dataclasses
import json

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.shipped import model

from outpace.engine.build import load
from outpace.serve.app import create_app
from outpace.serve.settings import ServerSettings
from outpace.serve.tools import CallReader

ONE = '<tool_call>\n{"name": "look", "arguments": {"where": "東京", "n": 1}}\n</tool_call>'
TEXTS = [
    ("plain", "plain", []),
    ("", "", []),
    (ONE, "", [("look", {"where": "東京", "n": 1})]),
    (f"I look.\n\n{ONE}", "I look.", [("look", {"where": "東京", "n": 1})]),
    (f"{ONE}\n{ONE}", "", [("look", {"where": "東京", "n": 1})] * 2),
    (f"{ONE}\nDone.", "\nDone.", [("look", {"where": "東京", "n": 1})]),
    (ONE.removesuffix("\n</tool_call>"), "", [("look", {"where": "東京", "n": 1})]),  # it stopped before the mark
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    ("a < b <tool", "a < b <tool", []),
    ("<tool_call>not JSON</tool_call> x", "<tool_call>not JSON</tool_call> x", []),
    ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ('<tool_call>{"name": 1}</tool_call>', '<tool_call>{"name": 1}</tool_call>', []),
    ("<tool_call>{", "<tool_call>{", []),
    ("ends with space \n", "ends with space \n", []),
]


@pytest.mark.parametrize(("answer", "text", "calls"), TEXTS)
@given(data=st.data())
def test_any_cut_of_an_answer_reads_alike(answer, text, calls, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    reader, told, found = CallReader(), "", []
    for piece in [answer[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]:
        more, new = reader.push(piece)
        told, found = told + more, found + new
    more, new = reader.push(answer[cuts[-1] if cuts else 0 :], final=True)
    told, found = told + more, found + new
    assert told == text
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found] == calls
    assert len({call["id"] for call in found}) == len(calls) == reader.calls


def test_text_before_a_call_is_not_held_back():
    assert CallReader().push("I will look it up <to")[0] == "I will look it up"


TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
HISTORY = [
    {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n": 2}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "here"},
]  # fmt: skip


@pytest.fixture(scope="module")
def calling():
    """The tiny model behind a template that takes tools; its prompts are kept."""
    engine = load(dataclasses.replace(model("tiny"), chat_template=TEMPLATE), drafter="lookup")
    with TestClient(create_app(engine, ServerSettings(model="tiny"))) as client:
        client.engine = engine
        yield client


def test_the_template_sees_tools_and_calls(calling, monkeypatch):
    seen = []
    opened = calling.engine.stream
    monkeypatch.setattr(
        calling.engine, "stream", lambda prompt, *a, **m: seen.append(prompt) or opened(prompt, *a, **m)
    )
    body = {"messages": HISTORY, "max_tokens": 1}
    for more in (
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none"},
        {},
    ):
        assert calling.post("/v1/chat/completions", json={**body, **more}).status_code == 200
    texts = [calling.engine.target.tokenizer.decode(prompt) for prompt in seen]
    told = 'system: Be brief.user: Where?assistant: (look {"n": 2})tool: here'
    offered = f"[{json.dumps(TOOL)}]" + told
    assert texts == [offered, offered, told, told]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_in_an_answer(calling, stream):
    """The model is made to call by a grammar."""
    pattern = r'Well\. <tool_call>\{"name": "look", "arguments": \{"n": [0-9]\}\}</tool_call>'
    body = {"messages": HISTORY, "tools": [TOOL], "temperature": 0, "max_tokens": 200,
            "response_format": {"type": "regex", "regex": pattern}, "stream": stream}  # fmt: skip
    answer = calling.post("/v1/chat/completions", json=body)
    if stream:
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        content = "".join(delta.get("content", "") for delta in deltas)
        (call,) = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert call.pop("index") == 0
        finish = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = answer.json()["choices"][0]
        content, finish = choice["message"]["content"], choice["finish_reason"]
        (call,) = choice["message"]["tool_calls"]
    assert content == "Well." and finish == "tool_calls"
    assert call["function"]["name"] == "look" and json.loads(call["function"]["arguments"]).keys() == {"n"}
    assert call["type"] == "function" and call["id"].startswith("call_")


def test_arguments_that_are_no_json(calling):
    history = json.loads(json.dumps(HISTORY))
    history[2]["tool_calls"][0]["function"]["arguments"] = "{"
    error = calling.post("/v1/chat/completions", json={"messages": history}).json()["error"]
    assert error["param"] == "messages[2].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system role here') }}", "no system role here"),
        (None, "no chat template"),
        ("{% if %}", "broken"),
    ],
)
def test_templates_that_refuse(template, words):
    """B39: a refusal of the template is the client's affair, and says why."""
    engine = load(dataclasses.replace(model("tiny"), chat_template=template), drafter="lookup")
    with TestClient(create_app(engine)) as client:
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
        assert words in answer.json()["error"]["message"]
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
