"""Drafters that fail, and drafts that cannot be used with their target."""

import dataclasses

import pytest
from tests.helpers.requests import CODE, GREEDY, ids, plain
from tests.helpers.shipped import model, new_engine, open_slots

from outpace import SamplingParams
from outpace.core.errors import DrafterError, ParameterError, VocabularyError
from outpace.engine.build import load


def test_drafter_that_raises_leaves_plain_decoding_and_one_warning(monkeypatch):
    engine = new_engine()

    def broken(*args):
        raise RuntimeError("the draft's memory is gone")

    monkeypatch.setattr(engine.scheduler.loop._drafter, "propose", broken)
    prompts = [CODE, ids(5), "import os"]
    for prompt, result in zip(prompts, engine.generate(prompts, GREEDY), strict=True):
        assert result.token_ids == plain(prompt).token_ids
        assert len(result.report.warnings) == 1 and "the draft's memory is gone" in result.report.warnings[0]
        assert (result.report.drafted, result.report.alpha) == (0, None)
    assert open_slots(engine) == 0
    monkeypatch.undo()
    assert engine.generate(CODE, GREEDY).report.drafted > 0


def test_draft_cache_that_cannot_be_allocated(monkeypatch):
    """B54: plain decoding with a warning; nothing hangs and nothing is left."""
    engine = new_engine()

    def full(capacity):
        raise MemoryError("no room for the draft's cache")

    monkeypatch.setattr(engine.scheduler.loop._drafter._cache, "open", full)
    result = engine.generate(CODE, GREEDY)
    assert result.token_ids == plain(CODE).token_ids
    assert len(result.report.warnings) == 1 and "no room" in result.report.warnings[0]
    assert open_slots(engine) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"drafter": "draft_model"}, "needs a draft model"),
        ({"drafter": "lookup", "draft": "tiny-draft"}, "takes no draft model"),
        ({"drafter": "medusa9"}, "drafter must be one of"),
        ({"accept": "maybe"}, "accept must be one of"),
        ({"gamma": -1}, "gamma must be"),
        ({"gamma": 2.0}, "gamma must be"),
        ({"gamma": True}, "gamma must be"),
        ({"max_batch": 0}, "max_batch must be"),
        ({"max_batch": None}, "max_batch must be"),
        ({"drafter_options": {"lookup": {"depth": 3}}}, "has no option 'depth'; it has .*min_match"),
        ({"drafter_options": {"lookup": {"min_match": 0}}}, "min_match must be at least 1"),
        ({"weights": "int3"}, "weights must be"),
        ({"backend": "abacus"}, "backend must be"),
        ({"context": 0}, "context must be a whole number of at least 1"),
        ({"context": 1025}, "context must lie between 1 and the model's 1024"),
    ],
)
def test_what_cannot_be_used_is_refused_at_load(arguments, words):
    """B60: never a silent fall-back to something else."""
    with pytest.raises((ParameterError, DrafterError), match=words):
        load("tiny", **arguments)


def test_draft_of_another_vocabulary_is_refused_at_load():
    """B24, B25, B60."""
    fewer = dataclasses.replace(model("tiny-draft"), tokenizer=_Words(1000), name="fewer")
    with pytest.raises(VocabularyError, match="1024 tokens and fewer has 1000"):
        load(model(), fewer)


class _Words:
    def __init__(self, size):
        self.size = size

    def tokens(self):
        return model().tokenizer.tokens()[: self.size]


def test_draft_with_a_context_shorter_than_the_one_asked_for():
    """The context given is the target's; a shorter draft drafts less near the end."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    engine = load(model("tiny", 100), model("tiny-draft", 50), controller="fixed")
    result = engine.generate(CODE, params)
    assert result.token_ids == plain(CODE, params).token_ids
    assert result.report.drafted > 0 and not result.report.warnings
