"""What is measured: the built-in prompts, and files in the layouts of Spec-Bench and HumanEval."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ParameterError

HERE = Path(__file__).parent
LONG_WORDS = (1500, 3500, 5500)  # about 2,000, 5,000 and 8,000 tokens


@dataclass(frozen=True)
class Prompt:
    """One request of a workload. ``raw``: text to go on from as it stands, not a user's message."""

    id: str
    category: str
    text: str
    raw: bool = False


def load_prompts(source: str, limit: int | None = None) -> list[Prompt]:
    """The prompts of ``source``: "built-in", or a file; of each category at most the first ``limit``.

    A file is either text (one prompt) or JSON lines: Spec-Bench's (``turns`` or ``prompt``, and ``category`` or
    ``task``), HumanEval's (``task_id`` and ``prompt``, gone on from as code), or our own (``text``, ``category``,
    ``id``). Raises ParameterError for a file that is none of these, naming the line.
    """
    if limit is not None and limit < 1:
        raise ParameterError(f"limit must be at least 1, not {limit}")
    prompts = built_in() if source == "built-in" else read_prompts(Path(source))
    if limit is None:
        return prompts
    counted: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        counted[prompt.category] = counted.get(prompt.category, 0) + 1
        if counted[prompt.category] <= limit:
            kept.append(prompt)
    return kept


def tuning() -> list[Prompt]:
    """Prompts that other engines' settings are chosen on; no figure is ever quoted for them."""
    return [Prompt(**entry) for entry in _shipped()["tuning"]]


def _shipped() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))
    return data


def built_in() -> list[Prompt]:
    """Our own prompts: code, edit, chat, summary, translation, maths, json, creative, long context."""
    long = [Prompt(f"long-{i}", "long", long_text(words, seed=i)) for i, words in enumerate(LONG_WORDS, start=1)]
    return [Prompt(**entry) for entry in _shipped()["prompts"]] + long


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, see :func:`load`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} cannot be read as prompts: {error}") from error
    if path.suffix not in (".jsonl", ".json"):
        if not text.strip():
            raise ParameterError(f"{path} is empty")
        return [Prompt(path.stem, path.stem, text)]
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(_entry(json.loads(line), number))
        except (json.JSONDecodeError, KeyError, TypeError, IndexError, ParameterError) as error:
            raise ParameterError(
                f"{path}, line {number}: not a prompt of Spec-Bench, HumanEval or ours ({error}): each line is an "
                "object with text, turns or prompt"
            ) from error
    if not found:
        raise ParameterError(f"{path} holds no prompts")
    return found


def _entry(entry: Mapping[str, Any], number: int) -> Prompt:
    if "text" in entry:
        return Prompt(str(entry.get("id", number)), entry.get("category", "own"), _text(entry["text"]))
    if "task_id" in entry:
        return Prompt(entry["task_id"], "humaneval", _text(entry["prompt"]), raw=True)
    text = entry["turns"][0] if "turns" in entry else entry["prompt"]
    return Prompt(str(entry.get("question_id", number)), entry.get("task") or entry.get("category", "own"), _text(text))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ParameterError("the prompt is not text, or empty")
    return value


_SHIPS = ("Albatross", "Meridian", "Juniper", "Halcyon", "Orlando", "Kestrel", "Saga", "Perseus", "Willow", "Tern")
_GOODS = ("timber", "salt", "copper wire", "oranges", "wool", "glass", "barley", "machine parts", "tea", "paper")
_PLACES = ("Aberwick", "Port Lysa", "Northmoor", "Santa Pela", "Grunhafen", "Two Rivers", "Cape Orne", "Valdis")
_WEATHER = ("light wind from the west", "fog until noon", "a heavy swell", "clear sky", "rain all day", "a north wind")
_LINES: tuple[Callable[[random.Random], str], ...] = (
    lambda r: (
        f"The {r.choice(_SHIPS)} came in from {r.choice(_PLACES)} with {r.randint(20, 400)} tons of "
        f"{r.choice(_GOODS)} and paid {r.randint(40, 900)} crowns of harbour dues."
    ),
    lambda r: (
        f"The {r.choice(_SHIPS)} left for {r.choice(_PLACES)} at {r.randint(4, 22)}:{r.choice(('00', '15', '40'))}, "
        f"{r.randint(1, 9)} hours late, with {r.choice(_GOODS)} below deck."
    ),
    lambda r: f"Weather: {r.choice(_WEATHER)}; water at the gauge {r.randint(180, 460)} centimetres.",
    lambda r: (
        f"The crane at berth {r.randint(1, 12)} stood still for {r.randint(1, 6)} hours, and the foreman asked "
        f"for {r.choice(('new rope', 'a second shift', 'oil', 'a smith'))}."
    ),
    lambda r: (
        f"A crate of {r.choice(_GOODS)} fell into the basin at berth {r.randint(1, 12)}; it was recovered by "
        f"the crew of the {r.choice(_SHIPS)}."
    ),
)


def long_text(words: int, seed: int) -> str:
    """The log of a harbour that never was, of about ``words`` words, and a question about it. The same for the same
    seed."""
    generator = random.Random(seed)
    days: list[str] = []
    counted, day = 0, 0
    while counted < words:
        day += 1
        lines = [generator.choice(_LINES)(generator) for _ in range(generator.randint(3, 6))]
        days.append(f"Day {day}. " + " ".join(lines))
        counted += sum(len(line.split()) for line in lines)
    asked = sorted(generator.sample(range(1, day + 1), 2))
    return ("Below is the log of a harbour.\n\n" + "\n\n".join(days)
            + f"\n\nCopy the entries of day {asked[0]} and day {asked[1]} word for word, then say in two sentences "
            "what differs between these two days.")  # fmt: skip


def categories(prompts: Sequence[Prompt]) -> list[str]:
    """The categories in the order in which they appear."""
    return list(dict.fromkeys(prompt.category for prompt in prompts))
