"""Requests that tests of the engine share, and what plain decoding answers."""

from outpace import Result, SamplingParams

from .shipped import shared_engine

CODE = "def read(path):\n    with open(path) as f:\n        return"
GREEDY = SamplingParams(max_tokens=20)
DRAFTERS = ["draft_model", "lookup", "own"]


def ids(count: int) -> list[int]:
    """A prompt of that many tokens."""
    return [(200 + 7 * i) % 1024 for i in range(count)]


def plain(prompt, params=GREEDY) -> Result:
    return shared_engine("none").generate(prompt, params)
