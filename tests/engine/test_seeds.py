"""What a seed promises, in this process and in another one."""

import dataclasses
import json
import subprocess
import sys

import pytest
from tests.helpers.requests import CODE
from tests.helpers.shipped import shared_engine

from outpace import SamplingParams

SAMPLED = SamplingParams(temperature=1.0, seed=42, max_tokens=20)


@pytest.mark.parametrize("accept", ["match", "ratio"])
def test_the_same_seed_five_times_and_another_one(accept):
    """B31."""
    engine = shared_engine("draft_model", 8, accept)
    five = [engine.generate(CODE, SAMPLED).token_ids for _ in range(5)]
    assert five == [five[0]] * 5
    assert engine.generate(CODE, dataclasses.replace(SAMPLED, seed=43)).token_ids != five[0]
    crowd = [SamplingParams(temperature=1.0, max_tokens=20)] * 3
    assert engine.generate([CODE] * 4, [crowd[0], SAMPLED, *crowd[1:]])[1].token_ids == five[0]


def test_unseeded_answers_differ_and_their_seeds_bring_them_back():
    """B32: within a process."""
    engine = shared_engine()
    free = dataclasses.replace(SAMPLED, seed=None)
    twenty = [engine.generate(CODE, free) for _ in range(20)]
    assert len({one.text for one in twenty}) >= 15
    again = [engine.generate(CODE, dataclasses.replace(SAMPLED, seed=one.report.seed)) for one in twenty[:3]]
    assert [one.token_ids for one in again] == [one.token_ids for one in twenty[:3]]


def test_a_fresh_process_says_the_same_with_the_seed_and_something_else_without():
    """B31, B32."""
    program = (
        "import json, torch, outpace; torch.set_num_threads(1); e = outpace.load('tiny', draft='tiny-draft');"
        f"p = outpace.SamplingParams(temperature=1.0, seed=42, max_tokens=20); q = {CODE!r};"
        "print(json.dumps([e.generate(q, p).token_ids, [e.generate(q, outpace.SamplingParams(temperature=1.0,"
        "max_tokens=20)).token_ids for _ in range(3)]]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seeded, unseeded = json.loads(run.stdout)
    engine = shared_engine()
    assert seeded == engine.generate(CODE, SAMPLED).token_ids
    free = dataclasses.replace(SAMPLED, seed=None)
    assert unseeded != [engine.generate(CODE, free).token_ids for _ in range(3)]
