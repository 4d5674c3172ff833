"""Requests that can never be served cost little: they are refused early, beside the others, and leave nothing."""

import contextlib
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.helpers.shipped import model
from tests.serve.test_command import process

GIANTS = {
    "text": {"prompt": "the cat sat. " * 69000},
    "one word": {"prompt": "a" * 900000},
    "ids": {"prompt": [1] * 330000},
    "several": {"prompt": ["x", "the cat sat. " * 60000]},
    "chat": {"messages": [{"role": "user", "content": "the cat sat. " * 69000}]},
    "messages": {"messages": [{"role": "user", "content": "a"}] * 20000},
    "prediction": {"prompt": "x", "prediction": {"type": "content", "content": "the cat sat. " * 69000}},
}


def test_giants_keep_nobody_waiting_and_leave_no_memory():
    with process() as (running, url):

        def post(body):
            raw = json.dumps(body)
            with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
                path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                connection.request("POST", path, raw, {"content-type": "application/json"})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

        def attack_with_giants(pool):
            for name, giant in GIANTS.items():
                attack = [pool.submit(post, giant) for _ in range(10 if name != "messages" else 3)]
                time.sleep(0.1)
                start = time.monotonic()
                assert post({"prompt": "def f(", "max_tokens": 1})[0] == 200
                assert time.monotonic() - start < 3, name
                for status, answer in [future.result() for future in attack]:
                    assert status == 400, (name, answer)
                    assert answer["error"]["code"] == "context_length_exceeded" or name == "prediction", (name, answer)

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(post, [{"prompt": "def f(", "max_tokens": 1}] * 30))
            sizes = [psutil.Process(running.pid).memory_info().rss]
            for _ in range(2):
                attack_with_giants(pool)
                sizes.append(psutil.Process(running.pid).memory_info().rss)
        quiet, once, twice = sizes
        assert once - quiet < 20 << 20  # bytes: the allocator keeps some of it, once
        assert twice < 1.05 * once


@pytest.mark.parametrize("text", ["a b " * 5000, "a" * 20000, "\n" * 20000, "\u6771" * 20000, "\U0001f642" * 9000, ""])
@pytest.mark.parametrize("most", [1, 10, 100, 1000, 30000])
def test_only_texts_that_are_too_long_are_called_so(text, most):
    tokenizer = model("tiny").tokenizer
    length = len(tokenizer.encode(text, add_special=False))
    assert length > most or not tokenizer.exceeds(text, most)
    assert tokenizer.exceeds(text, most) or length <= 16 * most
