"""Where answers end on the shipped tiny pair: end tokens and stop strings, also in an accepted run of drafts."""

import dataclasses

import pytest
from tests.helpers.requests import CODE, DRAFTERS, GREEDY, plain
from tests.helpers.shipped import new_engine, shared_engine

from outpace import SamplingParams


@pytest.mark.parametrize("gamma", [1, 4, 16])
@pytest.mark.parametrize("whose", ["model", "request"])
def test_end_token_in_an_accepted_run(whose, gamma):
    """B15, B56, B57: with its own draft everything is accepted, so the end falls into a run of gamma + 1 tokens."""
    text = plain(CODE).token_ids
    for end in set(text):
        place = text.index(end)
        engine = new_engine("own", end_tokens=[end] if whose == "model" else [])
        params = SamplingParams(max_tokens=20, stop_token_ids=[end] if whose == "request" else [])
        with engine.stream(CODE, params, gamma=gamma) as stream:
            streamed = [token for event in stream for token in event.token_ids]
        result = stream.result
        assert result.token_ids == streamed == text[: place + 1]
        assert result.finish_reason == "stop"
        report = result.report
        assert (report.emitted, report.target_passes) == (place + 1, place // (gamma + 1) + 1)
        assert report.accepted == report.tested == place + 1 - (place + 1) // (gamma + 1)


def test_ignoring_end_tokens_goes_on_as_plain_decoding_does():
    """B16: the model's own ends are ignored, those of the request are not."""
    text = plain(CODE).token_ids
    engine = new_engine("own", end_tokens=[text[3]])
    assert engine.generate(CODE, SamplingParams(max_tokens=20, ignore_eos=True)).token_ids == text
    params = SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=[text[8]])
    assert engine.generate(CODE, params).token_ids == text[: text.index(text[8]) + 1]


@pytest.mark.parametrize("drafter", ["none", "own"])
def test_end_as_the_last_token_allowed_is_a_stop(drafter):
    """B49: the same with and without drafting."""
    text = plain(CODE).token_ids
    count = next(i for i in range(5, 20) if text[i] not in text[:i])
    engine = new_engine(drafter, end_tokens=[text[count]])
    assert engine.generate(CODE, SamplingParams(max_tokens=count + 1)).finish_reason == "stop"
    assert engine.generate(CODE, SamplingParams(max_tokens=count)).finish_reason == "length"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_stop_strings_wherever_they_begin_and_end(drafter):
    """B17, B18, B36: in the middle of a run, across tokens, inside a token; the first occurrence counts."""
    engine, whole = shared_engine(drafter), plain(CODE)
    tokenizer = engine.target.tokenizer
    stops = [whole.text[start : start + size] for start in range(0, len(whole.text) - 8, 3) for size in (1, 2, 7)]
    params = [dataclasses.replace(GREEDY, stop=[stop, "\0"]) for stop in stops]
    for stop, result in zip(stops, engine.generate([CODE] * len(stops), params, gamma=16), strict=True):
        assert result.text == whole.text[: whole.text.find(stop)], stop
        assert result.finish_reason == "stop"
        needed = next(n for n in range(21) if len(tokenizer.decode(whole.token_ids[:n])) >= len(result.text))
        assert result.token_ids == whole.token_ids[:needed]
        assert result.report.emitted == needed
        assert 0 <= result.report.accepted <= min(needed, result.report.tested)
        if drafter == "own":  # every 17th token is the target's own
            assert result.report.accepted == needed - needed // 17


@pytest.mark.parametrize("gamma", [0, 5])
@pytest.mark.parametrize("before", ["", "):"])
def test_a_stop_string_may_be_a_special_token(gamma, before):
    """Wherever it comes, also within an accepted run of drafts; its name is never in the text."""
    engine = shared_engine("draft_model")
    tokenizer = engine.target.tokenizer
    for name in tokenizer.specials.values():
        forced = SamplingParams(max_tokens=6, logit_bias={tokenizer.token_id(name): 100}, ignore_eos=True)
        result = engine.generate(CODE, dataclasses.replace(forced, stop=[name]), gamma=gamma)
        assert (result.text, result.token_ids, result.finish_reason) == ("", [], "stop")
        assert engine.generate(CODE, forced, gamma=gamma).text == ""
        end = SamplingParams(max_tokens=40, stop=[before + name, "never"])
        plain = engine.generate(CODE, dataclasses.replace(end, stop=()), gamma=0)
        stopped = engine.generate(CODE, end, gamma=gamma)
        assert name not in stopped.text and plain.text.startswith(stopped.text)
