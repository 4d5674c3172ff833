"""What cannot be honoured is refused: 4xx in OpenAI's shape, with the field's name, and the next request works."""

import httpx
import openai
import pytest

TEXT = {"prompt": "def f(", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}

BAD_SAMPLING = [
    ("model", {"model": "gpt-4"}),
    ("model", {"model": "../../etc/passwd"}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": "1"}),
    ("temperature", {"temperature": True}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.5}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": 1.5}),
    ("min_p", {"min_p": 2}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": "x"}),
    ("n", {"n": 0}),
    ("n", {"n": 17}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 1.0}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a"] * 65}),
    ("stop[1]", {"stop": ["a", 3]}),
    ("stop_token_ids", {"stop_token_ids": [1024]}),
    ("stop_token_ids[0]", {"stop_token_ids": [-1]}),
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("frequency_penalty", {"frequency_penalty": -2.1}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("repetition_penalty", {"repetition_penalty": 5e-324}),  # a logit divided by it is infinite
    ("response_format", {"response_format": {"type": "xml"}}),
    ("response_format.regex", {"response_format": {"type": "regex"}}),
    ("response_format.grammar", {"response_format": {"type": "grammar", "grammar": "x" * 70000}}),
    ("response_format.json_schema.schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
    ("prediction.content", {"prediction": {"type": "content"}}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options.foo", {"stream": True, "stream_options": {"foo": 1}}),
    ("outpace.gamma", {"outpace": {"gamma": -1}}),
    ("outpace.gamma", {"outpace": {"gamma": 257}}),
    ("outpace", {"outpace": {"off": True, "gamma": 2}}),
    ("outpace.speed", {"outpace": {"speed": 11}}),
    ("outpace.drafter", {"outpace": {"drafter": "crystal_ball"}}),
    ("outpace.accept", {"outpace": {"accept": "always"}}),
    ("min_tokens", {"min_tokens": 3}),  # what others offer and we do not
    ("use_beam_search", {"use_beam_search": True}),
    # B46: ids that index nothing.
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": {"1024": 1}}),
    ("logit_bias", {"logit_bias": {"99999999": 1}}),
    ("logit_bias", {"logit_bias": {"abc": 1}}),
    ("logit_bias", {"logit_bias": {"1.5": 1}}),
    ("logit_bias", {"logit_bias": {"5": 1000}}),
    ("logit_bias", {"logit_bias": {"5": "much"}}),
    ("logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}),
]

BAD_TEXT = [
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": 5}),
    ("prompt", {"prompt": ""}),  # B45
    ("prompt", {"prompt": [""]}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": ["a", ""]}),
    ("prompt", {"prompt": [1024]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [1, "a"]}),
    ("prompt", {"prompt": ["a"] * 33}),
    ("prompt", {"prompt": ["a"] * 16, "n": 3}),
    ("prompt", {"prompt": [1] * 1025}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": True}),
    ("best_of", {"best_of": 3}),
    ("suffix", {"suffix": "x"}),
    ("messages", {"messages": []}),
]

BAD_CHAT = [
    ("messages", {"messages": None}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages[0].role", {"messages": [{"role": "wizard", "content": "x"}]}),
    ("messages[0]", {"messages": [{"role": "user"}]}),
    ("messages[1].content", {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 3}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}),
    ("messages[0].mood", {"messages": [{"role": "user", "content": "x", "mood": "good"}]}),
    ("messages[0]", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages", {"messages": [{"role": "user", "content": "word " * 2000}]}),
    ("max_tokens", {"max_completion_tokens": 3}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("logprobs", {"logprobs": 2}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),  # the tiny model's template takes none
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("functions", {"functions": []}),
    ("modalities[0]", {"modalities": ["audio"]}),
    ("audio", {"audio": {"voice": "x"}}),
    ("reasoning_effort", {"reasoning_effort": "high"}),
    ("web_search_options", {"web_search_options": {}}),
    ("prompt", {"prompt": "x"}),
    ("echo", {"echo": True}),
]


def test_the_limit_of_stop_strings_is_named(live):
    """17 are no error, and 65 one that says how many there may be; so is a text where a list of messages may stand."""
    assert live.post("completions", {**TEXT, "stop": [f"#{i}" for i in range(64)]}).status_code == 200
    message = live.post("completions", {**TEXT, "stop": ["a"] * 65}).json()["error"]["message"]
    assert "at most 64" in message and "65" in message
    assert "at least 1 character" in live.post("completions", {**TEXT, "stop": ""}).json()["error"]["message"]
    assert "string" in live.post("completions", {**TEXT, "stop": 5}).json()["error"]["message"]


def check(answer: httpx.Response, param: str | None, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert answer.json().keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param and error["type"] == "invalid_request_error" and error["message"]


@pytest.mark.parametrize(("param", "fields"), BAD_SAMPLING + BAD_TEXT, ids=lambda value: str(value)[:40])
def test_completions_refuse(live, param, fields):
    check(live.post("completions", {**TEXT, **fields}), param, 404 if param == "model" else 400)


@pytest.mark.parametrize(("param", "fields"), BAD_SAMPLING + BAD_CHAT, ids=lambda value: str(value)[:40])
def test_chat_refuses(live, param, fields):
    check(live.post("chat/completions", {**CHAT, **fields}), param, 404 if param == "model" else 400)


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_refusal_comes_before_a_streams_headers(live, fields):
    check(live.post("completions", {**TEXT, **fields, "outpace": {"drafter": "x"}}), "outpace.drafter")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": NaN}', b"[" * 100000,
     b'{"prompt": "a", "temperature": 1e999}',
     b'{"prompt": "\\ud800"}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}"],
    ids=lambda content: repr(content[:24]),
)  # fmt: skip
def test_malformed_bodies(live, content):
    answer = live.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_does_not_say_it_is_json(live):
    """A page of another site may post plain text without asking first: it is not read."""
    answer = live.http.post("/v1/completions", content='{"prompt": "a"}', headers={"content-type": "text/plain"})
    check(answer, None)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/v1/nothing", 404), ("GET", "/docs", 404),
     ("GET", "/v1/models/other", 404), ("DELETE", "/health", 405)],
)  # fmt: skip
def test_other_paths_and_methods(live, method, path, status):
    answer = live.http.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["message"]
    assert status != 405 or answer.headers["allow"]


def test_the_official_client_raises_its_own_errors(live):
    with pytest.raises(openai.BadRequestError) as caught:
        live.openai.completions.create(model="tiny", prompt="x", temperature=-1)
    assert caught.value.param == "temperature" and caught.value.code == "invalid_value"
    with pytest.raises(openai.NotFoundError):
        live.openai.models.retrieve("gpt-4")


def test_null_is_a_field_left_out(live):
    fields = dict.fromkeys(["temperature", "top_p", "seed", "n", "stop", "logit_bias", "logprobs", "stream", "user"])
    assert live.post("completions", {**TEXT, **fields, "suffix": None, "echo": None}).status_code == 200
    fields |= dict.fromkeys(["tools", "tool_choice", "response_format", "metadata", "store", "service_tier"])
    assert live.post("chat/completions", {**CHAT, **fields}).status_code == 200


def test_harmless_fields_are_taken_by_name(live):
    fields = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "modalities": ["text"],
              "safety_identifier": "x", "prompt_cache_key": "y", "parallel_tool_calls": True}  # fmt: skip
    assert live.post("chat/completions", {**CHAT, **fields}).status_code == 200


def test_the_next_request_works(live):
    assert live.post("completions", TEXT).status_code == 200
    assert live.wait_idle()
