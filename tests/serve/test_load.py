"""Many clients at once, some of which leave: every answer is what it is alone, and nothing is left over."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from tests.helpers.serving import serving
from tests.helpers.shipped import new_engine, open_slots

CODE = "def read(path):\n    with open(path) as f:\n        return"
PROMPTS = [CODE, "class A:\n    x = 1\n    x = 1\n", "# naïve 東京 ", "import os\n" * 20, "x = {'a': 1,"]


def mixed(i):
    """One of many requests, and whether it is streamed."""
    body = {"prompt": PROMPTS[i % 5], "max_tokens": 8 + i % 7, "temperature": (0, 1, 0.7)[i % 3], "seed": i % 11,
            "outpace": ({}, {"off": True}, {"gamma": 1 + i % 8}, {"drafter": "lookup"})[i % 4]}  # fmt: skip
    if i % 5 == 2:
        body |= {"frequency_penalty": 1.0, "stop": ["\n\n"], "logprobs": 1}
    return body, i % 2 == 0


def text_of(live, body, stream):
    if stream:
        return "".join(chunk["choices"][0]["text"] for chunk in live.chunks("completions", **body))
    return live.complete(**body)["choices"][0]["text"]


def test_answers_under_load_are_those_alone(live):
    """B51, B52: sixteen at once, joining and leaving, with and without drafts, of every length."""
    requests = [mixed(i) for i in range(40)]
    alone = [text_of(live, *request) for request in requests]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda request: text_of(live, *request), requests))
    assert together == alone
    assert len(set(alone)) > 20


def test_a_seed_holds_while_others_run(live):
    """B31: five times alone, and while unseeded requests run; another seed differs."""
    body = {"prompt": CODE, "max_tokens": 12, "seed": 42}
    alone = {text_of(live, body, False) for _ in range(5)}
    with ThreadPoolExecutor(6) as pool:
        noise = [pool.submit(text_of, live, {"prompt": CODE, "max_tokens": 20}, False) for _ in range(8)]
        among = {text_of(live, body, True) for _ in range(5)}
        assert len({future.result() for future in noise}) > 5
    assert len(alone) == 1 and among == alone
    assert text_of(live, {**body, "seed": 43}, False) not in alone


LONG = {"max_tokens": 900, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def small():
    """Two at a time, four in all."""
    with serving(new_engine(max_batch=2), most_open=4, timeout=60) as server:
        yield server
        assert server.wait_idle() and open_slots(server.engine) == 0


def leave(live, prompt, after, stream=True, when=lambda: True):
    """Ask, read until ``after`` chunks have come, wait until ``when`` says so, and close the socket."""
    body = json.dumps({"prompt": prompt, "stream": stream, **LONG}).encode()
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        connection.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        seen = b""
        while seen.count(b"data: ") < after:
            piece = connection.recv(4096)
            assert piece
            seen += piece
        while not when():
            time.sleep(0.001)


def test_fifty_clients_that_leave(small):
    """B53: after some chunks, before the first, while the prompt is read, and without a stream."""
    for i in range(50):
        leave(small, PROMPTS[i % 5] if i % 7 else [5] * 100, after=i % 4 if i % 5 else 0, stream=i % 5 != 0)
        if i % 3 == 0:
            assert small.wait_idle(2)
    assert small.wait_idle(2) and open_slots(small.engine) == 0
    assert small.complete(prompt=CODE, max_tokens=3, temperature=0)["usage"]["completion_tokens"] == 3


def test_leaving_the_queue(small):
    """B53: a client that waits for its turn and leaves gives up its place."""
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(small.complete, prompt=CODE, **{**LONG, "max_tokens": 700}) for _ in range(2)]
        while small.engine.open_requests != (2, 0):
            time.sleep(0.001)
        for i in range(6):  # more than there are places
            leave(small, CODE, after=0, stream=i % 2 == 0, when=lambda: small.engine.open_requests[1] == 1)
            deadline = time.monotonic() + 5
            while small.engine.open_requests[1] and time.monotonic() < deadline:
                time.sleep(0.001)
            assert small.engine.open_requests == (2, 0)  # the others still run: it was not their turn's end
        assert all(future.result()["usage"]["completion_tokens"] == 700 for future in running)


def test_a_full_queue_says_so(small):
    streams = [small.openai.completions.create(model="tiny", prompt=CODE, stream=True, max_tokens=900, temperature=0)
               for _ in range(2)]  # fmt: skip
    waiting = [threading.Thread(target=leave, args=(small, CODE, 1)) for _ in range(2)]
    for thread in waiting:
        thread.start()
    while sum(small.engine.open_requests) < 4:
        time.sleep(0.001)
    refused = small.post("completions", {"prompt": CODE})
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full" and refused.json()["error"]["type"] == "rate_limit_error"
    with pytest.raises(openai.RateLimitError):
        small.openai.completions.create(model="tiny", prompt=CODE)
    assert small.http.get("/health").status_code == 200  # whoever watches is not refused
    for stream in streams:
        stream.close()
    for thread in waiting:
        thread.join()
    assert small.wait_idle(2)
    assert small.post("completions", {"prompt": [CODE] * 5}).json()["error"]["param"] == "n"  # could never run


def test_the_official_client_leaves(small):
    for _ in range(4):
        with small.openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}],
                                                  stream=True, max_tokens=900) as stream:  # fmt: skip
            next(iter(stream))
        assert small.wait_idle(2)


def test_an_error_inside_ends_its_request_only(monkeypatch):
    """One request's distribution cannot be had: 500 for it, and the others get their answers."""
    engine = new_engine()
    with serving(engine) as server:
        alone = server.complete(prompt=CODE, max_tokens=30, temperature=0)["choices"][0]["text"]
        whole = engine._open

        def broken(prompt, params, *rest, **more):
            answer = whole(prompt, params, *rest, **more)
            if params.params.seed == 666:
                monkeypatch.setattr(answer.session.target_pipeline, "distribution", _raise)
            return answer

        monkeypatch.setattr(engine, "_open", broken)
        with ThreadPoolExecutor(4) as pool:
            good = [pool.submit(server.complete, prompt=CODE, max_tokens=30, temperature=0) for _ in range(3)]
            bad = server.post("completions", {"prompt": CODE, "seed": 666})
            assert [future.result()["choices"][0]["text"] for future in good] == [alone] * 3
        assert bad.status_code == 500
        assert bad.json()["error"] | {"message": ""} == {
            "message": "", "type": "server_error", "param": None, "code": "internal_error"}  # fmt: skip
        assert "secret" not in bad.text
        streamed = server.post("completions", {"prompt": CODE, "seed": 666, "stream": True})
        assert streamed.status_code == 500  # the failure came before the first token
        assert server.wait_idle(2) and open_slots(engine) == 0


def _raise(*args):
    raise RuntimeError("a secret of the machine")


def test_a_pass_that_fails_ends_what_was_in_it_and_nothing_more(monkeypatch):
    engine = new_engine()
    with serving(engine) as server:
        forward, left = engine.target.runtime.forward, [3]

        def failing(*args, **more):
            left[0] -= 1
            if left[0] == 0:
                raise MemoryError("no memory")
            return forward(*args, **more)

        monkeypatch.setattr(engine.target.runtime, "forward", failing)
        assert server.post("completions", {"prompt": CODE, **LONG}).status_code == 500
        assert server.complete(prompt=CODE, max_tokens=5, temperature=0)["usage"]["completion_tokens"] == 5
        assert server.wait_idle(2) and open_slots(engine) == 0


def test_stopping_the_server_ends_what_runs():
    engine = new_engine()
    ended = []

    def ask(url):
        try:
            ended.append(httpx.post(f"{url}/v1/completions", json={"prompt": CODE, **LONG}, timeout=60).status_code)
        except httpx.HTTPError as error:
            ended.append(error)

    with serving(engine) as server:
        thread = threading.Thread(target=ask, args=(server.url,))
        thread.start()
        while engine.open_requests == (0, 0):
            time.sleep(0.001)
    thread.join()  # uvicorn waited for it
    assert ended == [200] and open_slots(engine) == 0


def test_leaving_while_the_prompt_is_scored(small):
    """Scoring stops between two passes."""
    before = small.engine.scheduler.loop.cache.slots
    body = {"prompt": [[5] * 1000] * 4, "echo": True, "logprobs": 1, "max_tokens": 0}
    with pytest.raises(httpx.ReadTimeout):
        small.http.post("/v1/completions", json=body, timeout=0.1)
    assert small.wait_idle(2)
    deadline = time.monotonic() + 5
    while small.engine.scheduler.loop.cache.slots != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert small.engine.scheduler.loop.cache.slots == before
    assert small.complete(prompt=CODE, max_tokens=2, temperature=0)["usage"]["completion_tokens"] == 2
