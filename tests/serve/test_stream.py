"""Streams at byte level: framing, roles, usage, stop strings, characters."""

import json
import random

import pytest
from openai._streaming import SSEDecoder
from tests.helpers.shipped import new_engine

from outpace import SamplingParams

MESSAGES = [{"role": "user", "content": "def main("}]
TEXT = "class A:\n    def __init__(self):\n"


def raw(live, path, **body):
    answer = live.post(path, {**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    return answer.content


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_each_event_is_one_line_of_json(live, path):
    """B48."""
    prompt = {"prompt": TEXT} if path == "completions" else {"messages": MESSAGES}
    content = raw(live, path, **prompt, max_tokens=30, seed=1, n=2, temperature=20)
    assert b"\\u" in content and content.isascii() and content.endswith(b"data: [DONE]\n\n")
    events = content.split(b"\n\n")[:-2]
    chunks = []
    for event in events:
        assert event.startswith(b"data: {") and event.count(b"\n") == 0
        chunks.append(json.loads(event[6:]))
    assert len({(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == ("text_completion" if path == "completions" else "chat.completion.chunk")
    for index in range(2):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        if path != "completions":
            assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)


def test_random_splits_of_the_network(live):
    """B48: a client's parser finds the same events wherever the bytes are cut."""
    content = raw(live, "chat/completions", messages=[{"role": "user", "content": "東京 é"}], max_tokens=30, seed=2,
                  temperature=1.5)  # fmt: skip
    whole = [event.data for event in SSEDecoder().iter_bytes(iter([content]))]
    assert len(whole) > 5 and whole[-1] == "[DONE]"
    draw = random.Random(0)
    for _ in range(20):
        cuts = sorted(draw.sample(range(1, len(content)), 40))
        parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
        assert [event.data for event in SSEDecoder().iter_bytes(iter(parts))] == whole


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_usage_comes_once_and_last(live, path):
    """B20, B47."""
    prompt = {"prompt": TEXT} if path == "completions" else {"messages": MESSAGES}
    body = {**prompt, "max_tokens": 17, "temperature": 0, "ignore_eos": True}
    chunks = live.chunks(path, **body, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 17
    assert chunks[-1]["usage"] == live.post(path, body).json()["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }
    for without in (live.chunks(path, **body), live.chunks(path, **body, stream_options={"include_usage": False})):
        assert all("usage" not in chunk and chunk["choices"] for chunk in without)
    assert [("outpace" in chunk) for chunk in without] == [False] * (len(without) - 1) + [True]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("stop", [["):\n"], ["self", "return"], ["\n   ", "\n  "], ["t"]])
@pytest.mark.parametrize("outpace", [{"gamma": 8}, {"drafter": "lookup", "gamma": 16}])
def test_no_part_of_a_stop_string_is_sent(live, path, stop, outpace):
    """B16, B17, B36: and what is behind it neither."""
    prompt = {"prompt": TEXT} if path == "completions" else {"messages": MESSAGES}
    params = SamplingParams(max_tokens=40, stop=stop)
    expected = new_engine("none").generate(TEXT if path == "completions" else MESSAGES, params)
    chunks = live.chunks(path, **prompt, max_tokens=40, temperature=0, stop=stop, outpace=outpace)
    text = ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        text += choice.get("text", "") or choice.get("delta", {}).get("content", "")
        assert expected.text.startswith(text)
    assert text == expected.text and chunks[-1]["choices"][0]["finish_reason"] == expected.finish_reason


def test_no_half_characters(live):
    """B35: parts of a character wait for the rest; at the end they are shown as without streaming."""
    broken = 0
    for seed in range(6):
        body = {"prompt": "# 東京 é 🙂 ", "max_tokens": 25, "temperature": 5, "seed": seed}
        pieces = [chunk["choices"][0]["text"] for chunk in live.chunks("completions", **body)]
        whole = live.complete(**body)["choices"][0]["text"]
        assert "".join(pieces) == whole
        broken += whole.count("\ufffd")
    assert broken  # so hot that some are broken for good: these were compared too
