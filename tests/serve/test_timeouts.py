"""When an answer's time runs out, what there is of it is the answer."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.helpers.serving import serving
from tests.helpers.shipped import new_engine, open_slots

from outpace import SamplingParams

CODE = "def read(path):\n    with open(path) as f:\n        return"
LONG = {"max_tokens": 900, "temperature": 0, "ignore_eos": True}
SHAPES = {"completions": {"prompt": CODE, "logprobs": 1},
          "chat/completions": {"messages": [{"role": "user", "content": CODE}], "logprobs": True}}  # fmt: skip


def slowed(monkeypatch, seconds=0.02):
    """An engine whose rounds take some time."""
    engine = new_engine("none", max_batch=2)
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: time.sleep(seconds) or step())
    return engine


def text_of(choice):
    return choice["text"] if "text" in choice else (choice.get("message") or choice["delta"]).get("content", "")


@functools.cache
def whole_text(path):
    prompt = CODE if path == "completions" else SHAPES[path]["messages"]
    return new_engine("none").generate(prompt, SamplingParams(max_tokens=900, ignore_eos=True)).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", SHAPES)
@pytest.mark.parametrize("n", [1, 2])
def test_the_text_so_far(monkeypatch, path, stream, n):
    engine = slowed(monkeypatch)
    with serving(engine, timeout=0.4) as server:
        body = {**SHAPES[path], **LONG, "n": n}
        if stream:
            chunks = server.chunks(path, **body, stream_options={"include_usage": True})
            last, usage = chunks[-2], chunks[-1]["usage"]
            texts = [""] * n
            for chunk in chunks[:-1]:
                texts[chunk["choices"][0]["index"]] += text_of(chunk["choices"][0])
            reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1] if c["choices"][0]["finish_reason"]]
        else:
            answer = server.post(path, body)
            assert answer.status_code == 200, answer.text
            last, usage = answer.json(), answer.json()["usage"]
            texts = [text_of(choice) for choice in last["choices"]]
            reasons = [choice["finish_reason"] for choice in last["choices"]]
            assert all(choice["logprobs"] for choice in last["choices"])
        assert reasons == ["length"] * n and last["outpace"]["ended_by"] == "timeout"
        assert "time ran out" in last["outpace"]["warnings"][-1]
        assert 0 < usage["completion_tokens"] < 900 * n
        assert server.wait_idle(2) and open_slots(engine) == 0
        assert "outpace_timed_out_requests_total 1.0" in server.http.get("/metrics").text
        assert all(texts) and whole_text(path).startswith(texts[0])


def test_an_answer_that_ends_in_time_is_not_called_cut(monkeypatch):
    with serving(slowed(monkeypatch, 0), timeout=30) as server:
        assert "ended_by" not in server.complete(prompt=CODE, max_tokens=3)["outpace"]
        assert "outpace_timed_out_requests_total 0.0" in server.http.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_only_waited(monkeypatch, stream):
    """No text, so an error: which may be tried again, since others were served meanwhile."""
    engine = slowed(monkeypatch)
    with serving(engine, timeout=0.5) as server, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(server.post, "completions", {"prompt": CODE, **LONG}) for _ in range(2)]
        while engine.open_requests != (2, 0):
            time.sleep(0.001)
        monkeypatch.setattr(engine.scheduler.admission, "join", lambda: None)  # nobody else gets in
        late = server.post("completions", {"prompt": CODE, "stream": stream, **LONG})
        assert late.status_code == 503 and late.headers["retry-after"] and late.json()["error"]["code"] == "timeout"
        assert all(future.result().status_code == 200 for future in running)
        assert server.wait_idle(2)


def test_a_prompt_that_is_not_read_in_time(monkeypatch):
    engine = slowed(monkeypatch, 0.2)
    with serving(engine, timeout=0.3) as server:
        late = server.post("completions", {"prompt": [5] * 1000, **LONG})
        assert late.status_code == 408 and late.headers["x-should-retry"] == "false"
        assert server.wait_idle(2) and open_slots(engine) == 0
