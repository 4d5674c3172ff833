"""What the soak of `outpace serve` does beside asking: clients that stall, half-sent requests, prompts that never fit,
answers whose time runs out; and, beside its server, forks and a model file that is replaced while it is served.

Each function raises RuntimeError for a fault."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from serve_load import start_server

from outpace.catalogue import resolve

HEAD = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
GIANTS: list[dict[str, object]] = [
    {"prompt": "the cat sat. " * 69000},
    {"prompt": "a" * 900000},
    {"prompt": [1] * 330000},
    {"prompt": "x", "prediction": {"type": "content", "content": "the cat sat. " * 69000}},
]
FORKED = """
import multiprocessing, os, signal, sys
import outpace

engine = outpace.load("tiny", "tiny-draft")
params = outpace.SamplingParams(max_tokens=20)
alone = engine.generate("def f(", params).text

def child():
    signal.alarm(60)  # one that hangs is killed: a fault
    try:
        same = engine.generate("def f(", params).text == alone
    except outpace.OutpaceError as error:
        same = bool(str(error))
    os._exit(0 if same else 1)

def run_fork():
    pid = os.fork()
    if pid == 0:
        child()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
codes = [run_fork(), process.exitcode]
same = engine.generate("def f(", params).text == alone
print(codes, same)
sys.exit(0 if codes == [0, 0] and same else 1)
"""


async def half(url: str, draw: random.Random) -> None:
    """Half of a head or of a body, and then silence: the server must end the connection."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    part = draw.choice(["", HEAD[: draw.randrange(len(HEAD))], HEAD + "content-length: 900\r\n\r\n{"])
    writer.write(part.encode())
    try:
        await asyncio.wait_for(reader.read(), 90)
    except asyncio.TimeoutError:
        raise RuntimeError(f"a half-sent request of {len(part)} bytes is still open") from None
    except ConnectionError:
        pass
    finally:
        writer.close()


async def unread(url: str, draw: random.Random) -> None:
    """A long stream of which nothing is read, for some time or until the server has long given it up."""
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port, limit=1024)
    raw = json.dumps({"prompt": "def f(", "n": 4, "max_tokens": 900, "logprobs": 20, "stream": True})
    writer.write(f"{HEAD}content-length: {len(raw)}\r\n\r\n{raw}".encode())
    await asyncio.sleep(draw.choice([1, 10]))
    writer.transport.abort()


async def giant(client: httpx.AsyncClient, draw: random.Random) -> None:
    """A prompt that can never fit: refused as such, or because the queue is full."""
    response = await client.post("/v1/completions", json=draw.choice(GIANTS))
    if response.status_code not in (400, 429):
        raise RuntimeError(f"a giant was answered with {response.status_code} {response.text[:300]}")


async def out_of_time(client: httpx.AsyncClient) -> None:
    """More than the server's time for an answer allows: what there is comes, with a reason."""
    body = {"prompt": "def f(", "n": 8, "max_tokens": 1000, "ignore_eos": True, "temperature": 0}
    response = await client.post("/v1/completions", json=body)
    if response.status_code in (408, 429, 503):
        return
    answer = response.json()
    if response.status_code != 200 or {choice["finish_reason"] for choice in answer["choices"]} != {"length"}:
        raise RuntimeError(f"an answer out of time: {response.status_code} {response.text[:300]}")


async def forks() -> None:
    """An engine and its forks: a child answers, or says at once that it cannot."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FORKED, stdout=subprocess.PIPE)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 300)
    except asyncio.TimeoutError:
        process.kill()
        raise RuntimeError("a fork hangs") from None
    if process.returncode:
        raise RuntimeError(f"forks ended with status {process.returncode}: {out.decode()[-300:]}")


def replaced(draw: random.Random) -> None:
    """A server whose model file is cut short or overwritten under it: the same text, or an error; no crash."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(resolve("tiny"), Path(folder) / "copy"))
        weights = next(copy.glob("*.safetensors"))
        server, url = start_server(["--target", str(copy), "--threads", "1"])
        try:
            body = {"prompt": "def f(", "max_tokens": 30, "temperature": 0}
            alone = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
            size = weights.stat().st_size
            with weights.open("r+b") as file:
                if draw.random() < 0.5:
                    file.truncate(draw.choice([0, size // 2]))
                else:
                    file.write(bytes(size))
            for _ in range(3):
                response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
                if response.status_code == 200 and response.json()["choices"][0]["text"] != alone:
                    raise RuntimeError(f"another text after the model file was replaced: {response.text[:300]}")
                if response.status_code != 200 and not response.json()["error"]["message"]:
                    raise RuntimeError(f"no reason after the model file was replaced: {response.text[:300]}")
        except httpx.TransportError as error:
            raise RuntimeError(f"the server went with its model file: {error!r}, status {server.poll()}") from error
        finally:
            server.terminate()
            server.wait()
