"""The measuring itself: everybody answers the same prompts in turns, and what is measured is kept as it comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ContextError, OutpaceError
from .contenders import Contender
from .probe import Bandwidth
from .provenance import peak_memory, write_atomically
from .workload import Prompt

PLAIN = "plain"  # the name of our own plain decoding in every table


@dataclass
class Measurement:
    """All that was measured, as it is written to JSON.

    ``runs``: one object a run: contender, prompt, category, temperature, repeat, what :class:`contenders.Run` has,
    ``tokens_per_second`` and ``same_as_plain``. ``bandwidth``: bytes a second, before each prompt. ``costs``: seconds
    of passes by rows, "target" and where there is one "draft". ``failures``: who or what is missing, and why.
    """

    provenance: dict[str, Any]
    settings: dict[str, Any]
    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    bytes_read: dict[str, int] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    sample: dict[str, Any] = field(default_factory=dict)
    peak_memory: int = 0
    complete: bool = False

    def as_json(self) -> str:
        """The text of the file."""
        return json.dumps({"kind": "outpace-bench", **self.__dict__})

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """What :meth:`as_json` wrote."""
        data = json.loads(text)
        data.pop("kind")
        data["costs"] = {name: {int(n): s for n, s in found.items()} for name, found in data["costs"].items()}
        return cls(**data)


def merge(parts: Sequence[Measurement]) -> Measurement:
    """Several measurements of the same models as one; only runs of the same part are compared with each other."""
    whole = Measurement(parts[0].provenance, dict(parts[0].settings), parts[0].costs, parts[0].bytes_read)
    whole.provenance = whole.provenance | {"command": "; ".join(part.provenance["command"] for part in parts)}
    whole.complete = all(part.complete for part in parts)
    whole.peak_memory = max(part.peak_memory for part in parts)
    for number, part in enumerate(parts):
        whole.runs += [run | {"block": f"{number} {run['block']}"} for run in part.runs]
        for name in ("bandwidth", "failures", "tuning"):
            getattr(whole, name).extend(getattr(part, name))
        if len(part.sample.get("origins", [])) > len(whole.sample.get("origins", [])):
            whole.sample = part.sample
    return whole


@dataclass(frozen=True)
class Task:
    """What one run needs."""

    prompt: Prompt
    ids: Sequence[int]
    temperature: float
    repeat: int


def tasks(prompts: Sequence[tuple[Prompt, Sequence[int]]], temperatures: Sequence[float], repeats: int) -> list[Task]:
    """Every prompt at every temperature, the categories in turns: what is there after an interruption covers all."""
    by_category: dict[str, list[tuple[Prompt, Sequence[int]]]] = {}
    for prompt, ids in prompts:
        by_category.setdefault(prompt.category, []).append((prompt, ids))
    turns = []
    for place in range(max(map(len, by_category.values()), default=0)):
        turns += [found[place] for found in by_category.values() if place < len(found)]
    return [Task(p, ids, t, r) for r in range(repeats) for p, ids in turns for t in temperatures]


def measure_tasks(
    measurement: Measurement,
    contenders: Sequence[Contender],
    work: Sequence[Task],
    *,
    max_tokens: int,
    save: Path | None,
    bandwidth: Bandwidth,
    block: str = "",
    progress: Callable[[str], object] = lambda line: None,
    decode: Callable[[Sequence[int]], list[str]] | None = None,
) -> None:
    """Run every task of one block on every contender, in an order that turns from task to task; keep each at once.

    The first contender must be our plain decoding. One that fails with an error of its own is out for the rest, and
    ``failures`` says why. ``block``: names the runs that were interleaved, the only ones that are compared. ``save``:
    where the JSON is written after each task. ``decode``: token ids to their texts, to keep one answer for the view
    of its tokens. KeyboardInterrupt passes through with everything kept.
    """
    alive = list(contenders)
    for number, task in enumerate(work):
        measurement.bandwidth.append(bandwidth.measure())
        found: dict[str, dict[str, Any]] = {}
        try:
            for contender in _turned(alive, number):
                entry = _timed(contender, task, max_tokens, alive, measurement)
                if entry is None:
                    continue
                found[contender.name] = entry | {"block": block}
                progress(f"{number + 1}/{len(work)} {task.prompt.id} T={task.temperature:g} {contender.name}: "
                         f"{entry['tokens_per_second'] or 0:.1f} tok/s")  # fmt: skip
        finally:
            _keep(measurement, found, decode)
            measurement.peak_memory = peak_memory()
            if save is not None:
                try:
                    write_atomically(save, measurement.as_json())
                except OSError as error:  # it may be possible again at the end, and if not, it is printed
                    progress(f"{save} could not be written: {error}")


def _turned(contenders: Sequence[Contender], number: int) -> Iterator[Contender]:
    start = number % max(1, len(contenders))
    return iter([*contenders[start:], *contenders[:start]])


def _timed(
    contender: Contender, task: Task, max_tokens: int, alive: list[Contender], measurement: Measurement
) -> dict[str, Any] | None:
    try:
        run = contender.run(task.ids, max_tokens, task.temperature, seed=1000 + task.repeat)
    except ContextError as error:
        measurement.failures.append({"what": f"{contender.name}, {task.prompt.id}", "why": str(error)})
        return None
    except OutpaceError as error:
        measurement.failures.append({"what": contender.name, "why": str(error)})
        alive.remove(contender)
        return None
    return {
        "contender": contender.name,
        "prompt": task.prompt.id,
        "category": task.prompt.category,
        "prompt_tokens": len(task.ids),
        "temperature": task.temperature,
        "repeat": task.repeat,
        "tokens": run.tokens,
        "tokens_per_second": run.tokens_per_second,
        "first_tokens": run.first_tokens,
        "first_seconds": run.first_seconds,
        "seconds": run.seconds,
        "steps": run.steps,
        "origins": run.origins,
        "report": run.report,
    }


def _keep(
    measurement: Measurement, found: Mapping[str, dict[str, Any]], decode: Callable[[Sequence[int]], list[str]] | None
) -> None:
    """Add a task's runs; beside what plain decoding said, where it did."""
    plain = found.get(PLAIN)
    for entry in found.values():
        entry["same_as_plain"] = entry["tokens"] == plain["tokens"] if plain and entry is not plain else None
        drafted = any(origin not in ("correction", "bonus", "plain") for origin in entry["origins"])
        if decode is not None and drafted and len(entry["tokens"]) > len(measurement.sample.get("origins", [])):
            measurement.sample = {"prompt": entry["prompt"], "contender": entry["contender"],
                                  "temperature": entry["temperature"], "origins": entry["origins"],
                                  "pieces": decode(entry["tokens"])}  # fmt: skip
        measurement.runs.append(entry)
