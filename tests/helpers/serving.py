"""A server on loopback in a thread of this process, over the tiny pair."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import openai

from outpace.commands.serve import bind
from outpace.engine.engine import Engine
from outpace.serve.app import create_app
from outpace.serve.connections import server as http_server
from outpace.serve.settings import ServerSettings

MODEL = "tiny"


@dataclass(frozen=True)
class Live:
    """A running server. ``url`` has no /v1."""

    engine: Engine
    url: str
    http: httpx.Client
    openai: openai.OpenAI

    def post(self, path: str, body: object, **more: object) -> httpx.Response:
        return self.http.post(f"/v1/{path}", json=body, **more)

    def complete(self, **body: object) -> dict:
        """A whole text completion; must succeed."""
        answer = self.post("completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chunks(self, path: str, **body: object) -> list[dict]:
        """The chunks of a streamed completion; must succeed and end as it should."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def wait_idle(self, seconds: float = 5.0) -> bool:
        """Whether nothing runs or waits any more within that time."""
        end = time.monotonic() + seconds
        while self.engine.open_requests != (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        return self.engine.open_requests == (0, 0)


@contextlib.contextmanager
def serving(engine: Engine, **settings: object) -> Iterator[Live]:
    """Serve an engine; ``settings`` are fields of ServerSettings."""
    listener = bind("127.0.0.1", 0)
    chosen = ServerSettings(**{"model": MODEL, **settings})  # type: ignore[arg-type]
    # This machine may stand still for a minute.
    server = http_server(create_app(engine, chosen), chosen, listener, timeout_keep_alive=600)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=60) as client:
            # The official client would otherwise try failed requests again.
            official = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
            yield Live(engine, url, client, official)
    finally:
        server.should_exit = True
        thread.join()
