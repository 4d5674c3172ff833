"""Clients that stop reading or writing: they end, and keep nobody else out."""

import contextlib
import gc
import json
import socket
import time
import weakref

import pytest
from tests.helpers.serving import serving
from tests.helpers.shipped import new_engine, open_slots

from outpace.serve import worker

CODE = "def read(path):\n    with open(path) as f:\n        return"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def connect(live, window=None):
    connection = socket.socket()
    if window is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    host, port = live.url.removeprefix("http://").split(":")
    connection.settimeout(30)
    connection.connect((host, int(port)))
    return connection


def ask(connection, **body):
    raw = json.dumps({"prompt": CODE, "temperature": 0, "stream": True, "ignore_eos": True, **body}).encode()
    connection.sendall(HEAD + f"content-length: {len(raw)}\r\n\r\n".encode() + raw)


def ended(connection, seconds):
    """Whether the server ends the connection within that time; what it sent before is dropped."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


BIG = {"max_tokens": 900, "n": 4, "logprobs": 20}  # megabytes


def test_who_stops_reading_frees_its_place_and_ends(monkeypatch):
    """While it is not read, a job keeps few updates; the next client is served; at the limit of time all goes."""
    jobs, most = [], [0]
    init = worker.Worker._look

    def look(self, job, calls):
        if not jobs:
            jobs.append(weakref.ref(job))
        most[0] = max(most[0], job.posted - job.taken)
        return init(self, job, calls)

    monkeypatch.setattr(worker.Worker, "_look", look)
    engine = new_engine("none")
    with serving(engine, most_open=4, stall_timeout=2) as server, connect(server, 4096) as unread:
        ask(unread, **BIG)
        assert unread.recv(10)
        assert server.wait_idle(20)
        assert most[0] <= worker.MOST_UNREAD + 4  # and the last of each answer
        assert server.complete(prompt=CODE, max_tokens=1)  # all places are free although nothing was read
        time.sleep(3.5)
        gc.collect()
        assert jobs[0]() is None and open_slots(engine) == 0
        assert "outpace_cancelled_requests_total 1.0" in server.http.get("/metrics").text
        assert ended(unread, 5)


def test_a_slow_reader_gets_all_of_it():
    """It takes longer than the time limit for one that takes nothing."""
    with serving(new_engine("none"), stall_timeout=1) as server:
        body = {"max_tokens": 300, "logprobs": 20}
        expected = server.complete(prompt=CODE, temperature=0, ignore_eos=True, **body)["choices"][0]["text"]
        with connect(server, 4096) as slow:
            ask(slow, **body)
            seen, start = b"", time.monotonic()
            while b"[DONE]" not in seen:
                piece = slow.recv(2048)
                assert piece, seen[-300:]
                seen += piece
                time.sleep(0.025)
            assert time.monotonic() - start > 2
        chunks = [json.loads(part.split(b"\n\n")[0]) for part in _dechunked(seen).split(b"data: ")[1:-1]]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected


def _dechunked(raw):
    out, rest = b"", raw.split(b"\r\n\r\n", 1)[1]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        out, rest = out + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if b"[DONE]" in out:
            return out
    return out


def test_half_sent_requests_end():
    """Also those that trickle; and a slow one that arrives in time is answered."""
    with serving(new_engine("none"), read_timeout=1.0, most_open=4) as server:
        heads = [connect(server) for _ in range(20)]
        for head in heads[1:]:
            head.sendall(HEAD[:20])
        bodies = [connect(server) for _ in range(20)]
        for body in bodies:
            body.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        assert server.complete(prompt=CODE, max_tokens=1)  # half-sent bodies hold no place
        deadline = time.monotonic() + 1.6
        while time.monotonic() < deadline:
            for trickling in (heads[1], bodies[1]):
                with contextlib.suppress(OSError):
                    trickling.sendall(b"x")
            time.sleep(0.1)
        answers = [connection.recv(1000) for connection in (heads[2], bodies[2])]
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers)
        assert all(ended(connection, 0.5) for connection in heads + bodies)
        with connect(server) as slow:
            raw = json.dumps({"prompt": CODE, "max_tokens": 1}).encode()
            for part in (HEAD[:30], HEAD[30:] + f"content-length: {len(raw)}\r\n\r\n".encode(), raw[:9], raw[9:]):
                slow.sendall(part)
                time.sleep(0.3)
            assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_a_limit_of_connections():
    """Who has waited longest for its own request makes room; where all are being answered, health is still told."""
    with serving(new_engine("none"), most_connections=4, read_timeout=60) as server:
        silent = [connect(server) for _ in range(8)]
        time.sleep(1.2)
        assert server.complete(prompt=CODE, max_tokens=1)
        server.http.close()
        for connection in silent:
            connection.close()
        time.sleep(0.2)
        busy = [connect(server) for _ in range(4)]
        for connection in busy:
            ask(connection, max_tokens=900, logprobs=20)
            connection.recv(10)
        for path, status in ((b"/health", b"200"), (b"/v1/models", b"503")):
            with connect(server) as another:
                another.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
                assert another.recv(100).split()[1] == status
        for connection in busy:
            connection.close()


@pytest.mark.parametrize("early", [True, False])
def test_a_full_queue_answers_before_the_body_is_read(early):
    """``early``: the queue is full when the head comes; otherwise it fills while the body is on its way."""
    with serving(new_engine("none"), most_open=1) as server, connect(server) as late, connect(server) as busy:
        if not early:
            late.sendall(HEAD + b"content-length: 1000\r\n\r\n")
            time.sleep(0.1)
        ask(busy, max_tokens=900)
        assert busy.recv(10)
        late.sendall(HEAD + b"content-length: 1000\r\n\r\n" if early else b" " * 1000)
        assert late.recv(15) == b"HTTP/1.1 429 To"
        if early:  # the connection goes on behind the body
            late.sendall(b" " * 1000)
