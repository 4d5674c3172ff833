"""The audit's drivers of the production loop on toys and its scripted drafters, under the names that tests use."""

from outpace import verify
from outpace.audit.drive import (
    PROMPT,
    admit,
    check_cache,
    commit_until,
    decode,
    distance,
    finish,
    plain,
    remembered,
    session,
)
from outpace.audit.shapes import Scripted, mixture, right_first, sampled_tree, top_tree
from outpace.core.types import SamplingParams

MATCH, RATIO, BLOCK = verify.rule("match"), verify.rule("ratio"), verify.rule("block")
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)

__all__ = [
    "BLOCK",
    "GREEDY",
    "MATCH",
    "PROMPT",
    "RATIO",
    "SAMPLED",
    "Scripted",
    "admit",
    "check_cache",
    "commit_until",
    "decode",
    "distance",
    "finish",
    "mixture",
    "plain",
    "remembered",
    "right_first",
    "sampled_tree",
    "session",
    "top_tree",
]
