"""Load on `outpace serve`: throughput, time to the first token and between tokens, with speculation and without.

Starts a server of its own (everything after -- goes to it) or uses one that runs (--url). Closed loop: so many clients,
each with one request at a time. Open loop: requests come at random at a mean rate, whatever has become of the earlier
ones. Both modes are measured in turns on the same requests, and their answers compared. Prints a table, and one JSON
object with where it was measured to --json.

    python runs/serve_load.py --clients 1 2 4 --rates 0.5 --tokens 48 -- --target tiny
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from outpace.bench.provenance import provenance
from outpace.bench.workload import load_prompts

MODES = {"off": {"off": True}, "on": {}}


@dataclass
class Answer:
    """One request as its client saw it: seconds after it was sent."""

    text: str = ""
    tokens: int = 0
    events: list[float] = field(default_factory=list)
    status: int = 0


async def ask(client: httpx.AsyncClient, prompt: str, tokens: int, options: dict[str, object]) -> Answer:
    """Stream one answer."""
    answer, start = Answer(), time.perf_counter()
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True}, "outpace": options}  # fmt: skip
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        answer.status = response.status_code
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if chunk.get("usage"):
                    answer.tokens = chunk["usage"]["completion_tokens"]
                elif chunk["choices"]:
                    answer.events.append(time.perf_counter() - start)
                    answer.text += chunk["choices"][0]["delta"].get("content", "")
    return answer


async def closed(one: Callable[[int], Awaitable[Answer]], clients: int, count: int) -> list[Answer]:
    """``count`` requests by ``clients`` that each wait for their answer."""
    answers: list[Answer] = [Answer() for _ in range(count)]
    todo = iter(range(count))

    async def client() -> None:
        for i in todo:
            answers[i] = await one(i)

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def opened(one: Callable[[int], Awaitable[Answer]], rate: float, count: int, seed: int) -> list[Answer]:
    """``count`` requests whose gaps are exponential with mean 1 / ``rate`` seconds."""
    draw, running = random.Random(seed), []
    for i in range(count):
        running.append(asyncio.create_task(one(i)))  # type: ignore[arg-type]
        await asyncio.sleep(draw.expovariate(rate))
    return list(await asyncio.gather(*running))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def summary(answers: list[Answer], seconds: float) -> dict[str, float]:
    good = [answer for answer in answers if answer.status == 200 and answer.tokens]
    first = [answer.events[0] for answer in good]
    gaps = [b - a for answer in good for a, b in zip(answer.events, answer.events[1:], strict=False)]
    each = [(a.events[-1] - a.events[0]) / (a.tokens - 1) for a in good if a.tokens > 1]
    tokens = sum(answer.tokens for answer in good)
    return {
        "answers": len(good), "refused": len(answers) - len(good), "tokens": tokens, "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        **{f"first_p{p}": percentile(first, p / 100) for p in (50, 95)},
        **{f"gap_p{p}": percentile(gaps, p / 100) for p in (50, 95, 99)},
        **{f"token_p{p}": percentile(each, p / 100) for p in (50, 95)},
    }  # fmt: skip


async def measure(url: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """All loads, each in every mode, the modes taking turns."""
    prompts = [prompt.text for prompt in load_prompts("built-in") if prompt.category == args.category]
    rows: list[dict[str, object]] = []
    loads = [("closed", float(n)) for n in args.clients] + [("open", rate) for rate in args.rates]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        await ask(client, prompts[0], 8, {})  # the first request of a process pays for what is made once
        for kind, size in loads:
            runs: dict[str, list[tuple[list[Answer], float]]] = {mode: [] for mode in MODES}
            for repeat in range(args.repeat):
                for mode, options in MODES.items():

                    def one(i: int, options: dict[str, object] = options) -> Awaitable[Answer]:  # type: ignore[assignment]
                        return ask(client, prompts[i % len(prompts)], args.tokens, options)

                    start, count = time.perf_counter(), max(args.requests, int(size) if kind == "closed" else 0)
                    task = closed(one, int(size), count) if kind == "closed" else opened(one, size, count, repeat)
                    runs[mode].append((await task, time.perf_counter() - start))
            texts = {mode: [answer.text for answers, _ in found for answer in answers] for mode, found in runs.items()}
            for mode, found in runs.items():
                row = summary([answer for answers, _ in found for answer in answers], sum(s for _, s in found))
                rows.append({"loop": kind, "load": size, "mode": mode, **row, "same_text": texts["on"] == texts["off"]})
                show(rows[-1], rows[-2] if mode == "on" else None)
    return rows


def show(row: dict[str, object], plain: dict[str, object] | None) -> None:
    """One line of the table; the ratio to ``plain`` where there is one."""
    ratio = "" if plain is None else f"  x{row['tokens_per_second'] / plain['tokens_per_second']:.3f}"  # type: ignore[operator]
    print("{loop:>6} {load:5g} {mode:>3}  {tokens_per_second:8.1f} tok/s  first {first_p50:6.3f} {first_p95:6.3f}  "
          "gap {gap_p50:6.4f} {gap_p95:6.4f} {gap_p99:6.4f}  per token {token_p50:6.4f} s  refused {refused}  "
          "same text {same_text}".format(**row) + ratio, flush=True)  # fmt: skip


def start_server(options: list[str]) -> tuple[subprocess.Popen[str], str]:
    """`outpace serve` on a free port, and its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "outpace", "serve", "--port", str(port), *options], text=True)
    url = f"http://127.0.0.1:{port}"
    while True:
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.returncode}")
        try:
            httpx.get(f"{url}/health").raise_for_status()
            return process, url
        except httpx.TransportError:
            time.sleep(0.2)


def main() -> None:
    words, rest = sys.argv[1:], []
    if "--" in words:
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 2, 4, 8, 16], metavar="N", help="closed loops")
    parser.add_argument("--rates", type=float, nargs="*", default=[], metavar="R", help="open loops, requests a second")
    parser.add_argument("--requests", type=int, default=16, metavar="N", help="of each load and repeat (16)")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="turns of the modes (2)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of each answer (64)")
    parser.add_argument("--category", default="code", help="of the built-in prompts (code)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(words)
    process, url = (None, args.url) if args.url else start_server(rest)
    try:
        model = httpx.get(f"{url}/v1/models").json()["data"][0]
        rows = asyncio.run(measure(url, args))
    finally:
        if process is not None:
            process.terminate()
            process.wait()
    if args.json:
        args.json.write_text(json.dumps({**provenance([]), "model": model, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
