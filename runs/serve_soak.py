"""A soak of `outpace serve`: mixed requests, clients that leave or stall, bodies that are no requests or come by half,
prompts that never fit, answers whose time runs out, for as long as asked. Beside its server, forks of an engine, and a
model file that is replaced while it is served.

Every whole answer to a greedy or seeded request must be what the same request got alone at the start; one whose time
ran out begins like it. In the end nothing runs, no cache slot and no connection is held beyond what the server keeps
for later requests, and memory has not grown. Exit status 1 if any of it fails.

    python runs/serve_soak.py --minutes 2 -- --target tiny
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from functools import partial

import httpx
import psutil
from serve_attacks import forks, giant, half, out_of_time, replaced, unread
from serve_load import start_server

CODE = "def read(path):\n    with open(path) as f:\n        return"
LIMITS = ["--timeout", "5", "--read-timeout", "3", "--stall-timeout", "3"]  # short, so that they are reached
WEIGHTS = {"whole": 40, "stream": 40, "leave": 20, "broken": 10, "giant": 4, "half": 4, "unread": 4, "late": 2}
PROMPTS = [
    CODE,
    "class A:\n    x = 1\n    x = 1\n",
    "# naïve 東京 ",
    "import os\n" * 40,
    "x = {'a': 1,",
    "<|im_start|>",
]
EXTRAS = {"top_p": 0.9, "top_k": 20, "min_p": 0.05, "frequency_penalty": 0.7, "n": 2, "repetition_penalty": 1.2,
          "stop": ["\n\n", "return"], "logit_bias": {"300": 3}, "ignore_eos": True}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
BROKEN = [b"", b"{", b"[]", b"\xff", b'{"prompt": 5}', b'{"prompt": "a", "n": 0}',
          b'{"prompt": "a", "logit_bias": {"-1": 1}}',
          b'{"prompt": ""}', b'{"prompt": "a", "response_format": {"type": "regex", "regex": "("}}', b"[" * 5000,
          b'{"prompt": "' + b"a " * 60000 + b'"}', b'{"prompt": "a", "unknown": 1}']  # fmt: skip


def request(number: int) -> tuple[str, dict[str, object]]:
    """One of many requests: path and body, always the same for a number."""
    draw = random.Random(number)
    body: dict[str, object] = {"max_tokens": draw.choice([1, 5, 20, 60]), "seed": draw.randrange(5),
                               "temperature": draw.choice([0, 0.7, 1.3])}  # fmt: skip
    if draw.random() < 0.3:
        body["outpace"] = draw.choice([{"off": True}, {"gamma": draw.randrange(9)}, {"show": True}])
    body |= {name: value for name, value in EXTRAS.items() if draw.random() < 0.12}
    if draw.random() < 0.15:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
        body.pop("ignore_eos", None)
    prompt = draw.choice(PROMPTS)
    if draw.random() < 0.5:
        if draw.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": 2}
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}
    if draw.random() < 0.3:
        body |= {"logprobs": 2, "echo": draw.random() < 0.5}
    return "/v1/completions", {**body, "prompt": prompt}


async def whole(client: httpx.AsyncClient, number: int, stream: bool) -> tuple[list[str], bool] | None:
    """The texts of an answer's choices, and whether time ran out; None when nothing came for want of room or time."""
    path, body = request(number)
    response = await client.post(path, json={**body, "stream": stream})
    if response.status_code in (408, 429, 503):
        return None
    if response.status_code != 200:
        raise RuntimeError(f"request {number}: {response.status_code} {response.text[:300]}")
    texts: dict[int, str] = {}
    cut = False
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    for chunk in chunks if stream else [response.json()]:
        if "error" in chunk:
            raise RuntimeError(f"request {number}: {chunk}")
        cut = cut or "ended_by" in chunk.get("outpace", {})
        for choice in chunk["choices"]:
            part = choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + part
    return [texts[index] for index in sorted(texts)], cut


def wrong(texts: list[str], cut: bool, alone: list[str]) -> bool:
    """Whether an answer is not what it was alone, or, if time ran out, does not begin like it. Such an end may show
    half a character, or the beginning of a stop string."""
    if not cut:
        return texts != alone
    pairs = [(text.rstrip("\ufffd"), whole) for text, whole in zip(texts, alone, strict=False)]
    return any(not whole.startswith(text) and not text.startswith(whole) for text, whole in pairs)


async def leave(client: httpx.AsyncClient, number: int, draw: random.Random) -> None:
    """Ask, read some, and go; or go before anything comes."""
    path, body = request(number)
    body = {**body, "max_tokens": 500, "stream": True}
    try:
        async with client.stream("POST", path, json=body, timeout=draw.choice([0.01, 0.1, 30])) as response:
            left = draw.randrange(4)
            async for _ in response.aiter_lines():
                left -= 1
                if left < 0:
                    break
    except httpx.TimeoutException:
        pass


async def broken(client: httpx.AsyncClient, draw: random.Random) -> None:
    """Something that is no request: it must be refused, and in the usual shape."""
    path = draw.choice(["/v1/chat/completions", "/v1/completions"])
    response = await client.post(path, content=draw.choice(BROKEN), headers={"content-type": "application/json"})
    if not 400 <= response.status_code < 500 or not response.json()["error"]["message"]:
        raise RuntimeError(f"a broken body was answered with {response.status_code} {response.text[:300]}")


async def soak(url: str, process: psutil.Process, args: argparse.Namespace) -> list[str]:
    """What went wrong."""
    faults: list[str] = []
    counts: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        alone = {number: (await whole(client, number, False) or ([], False))[0] for number in range(args.kinds)}
        end, memory = time.monotonic() + 60 * args.minutes, []
        warm = time.monotonic() + 60 * args.minutes * 0.2

        async def run(seed: int) -> None:
            draw = random.Random(seed)
            while time.monotonic() < end:
                kind = draw.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
                number = draw.randrange(args.kinds)
                try:
                    if kind == "leave":
                        await leave(client, number, draw)
                    elif kind == "broken":
                        await broken(client, draw)
                    elif kind == "giant":
                        await giant(client, draw)
                    elif kind == "half":
                        await half(url, draw)
                    elif kind == "unread":
                        await unread(url, draw)
                    elif kind == "late":
                        await out_of_time(client)
                    else:
                        answer = await whole(client, number, kind == "stream")
                        if answer is None:
                            kind = "refused"
                        elif wrong(*answer, alone[number]):
                            faults.append(f"request {number} ({kind}): {answer} instead of {alone[number]}")
                except Exception as error:
                    faults.append(f"{kind} {number}: {type(error).__name__}: {error}")
                counts[kind] += 1

        async def beside() -> None:
            draw = random.Random(0)
            while time.monotonic() < end:
                for attempt in (forks, partial(asyncio.to_thread, replaced, draw)):
                    try:
                        await attempt()
                    except Exception as error:
                        faults.append(f"beside the server: {error}")
                    counts["beside"] += 1
                await asyncio.sleep(min(60, max(0, end - time.monotonic())))

        async def watch() -> None:
            while time.monotonic() < end:
                await asyncio.sleep(1)
                if time.monotonic() > warm:
                    memory.append(process.memory_info().rss)

        await asyncio.gather(watch(), beside(), *(run(seed) for seed in range(args.clients)))
        await asyncio.sleep(8)
        health = (await client.get("/health")).json()
        figures = (await client.get("/metrics")).text
    if (health["running"], health["waiting"]) != (0, 0):
        faults.append(f"something still runs: {health}")
    open_still = [one for one in process.net_connections(kind="tcp") if one.status == "ESTABLISHED"]
    if open_still:
        faults.append(f"{len(open_still)} connections are still open")
    held = float(re.findall(r"(?m)^outpace_kv_cache_bytes (\S+)", figures)[0])
    if held > args.kept << 20:
        faults.append(f"{held:.0f} bytes of keys and values are still held")
    third = max(1, len(memory) // 3)
    before, after = sum(memory[:third]) / third, sum(memory[-third:]) / third
    growth = after / before - 1
    if growth > args.growth:
        faults.append(f"memory grew by {growth:.1%}")
    print(dict(counts), f"kept {held / 2**20:.1f} MiB, memory {before / 2**20:.0f} -> {after / 2**20:.0f} MiB")
    return faults


def main() -> int:
    words, rest = sys.argv[1:], []
    if "--" in words:
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, metavar="N", help="how long (30)")
    parser.add_argument("--clients", type=int, default=12, metavar="N", help="at once (12)")
    parser.add_argument("--kinds", type=int, default=60, metavar="N", help="different requests (60)")
    parser.add_argument("--kept", type=int, default=256, metavar="MIB", help="what the server may keep cached (256)")
    parser.add_argument("--growth", type=float, default=0.05, metavar="X", help="memory may grow by this share (0.05)")
    args = parser.parse_args(words)
    server, url = start_server([*LIMITS, *rest])
    try:
        faults = asyncio.run(soak(url, psutil.Process(server.pid), args))
    finally:
        server.terminate()
        server.wait()
    print("\n".join(faults[:20]) or "no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
