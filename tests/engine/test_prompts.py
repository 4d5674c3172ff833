"""Prompts of every kind and length on the shipped tiny pair, up to the end of the context."""

import dataclasses

import pytest
import torch
from tests.helpers.requests import CODE, DRAFTERS, GREEDY, ids, plain
from tests.helpers.shipped import model, new_engine, open_slots, shared_engine

from outpace import SamplingParams
from outpace.core.errors import ContextError, ParameterError, TemplateError
from outpace.engine.build import load


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("prompt", ["", [[]], [""], [CODE, ""], [ids(3), []]])
def test_empty_prompts_are_refused_and_the_next_one_works(prompt, drafter):
    """B45: the tiny pair's tokenizer has nothing to begin with."""
    engine = shared_engine(drafter)
    with pytest.raises(ParameterError, match="prompt is empty"):
        engine.generate(prompt, GREEDY)
    assert open_slots(engine) == 0
    assert engine.generate(CODE, GREEDY).token_ids == plain(CODE).token_ids


def test_an_empty_list_is_an_empty_batch_and_an_empty_stream_is_refused():
    assert shared_engine().generate([]) == []
    with pytest.raises(ParameterError, match="prompt is empty"):
        shared_engine().stream([])


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("prompt", [" ", "     ", "\n\n", [5], "naïve 東京 \U0001f409"])
def test_shortest_and_oddest_prompts(prompt, drafter):
    assert shared_engine(drafter).generate(prompt, GREEDY).token_ids == plain(prompt).token_ids


@pytest.mark.parametrize(
    "prompt",
    [[1024], [-1], [3, 10**12], [3, 1.5], [True, False], [3, "a"], [3, None], b"text", 5, None, 1.5, [None], [1.5],
     ["text", 5], [b"text"], torch.tensor([1, 2]), {"role": "user", "content": "x"}, iter("ab"), "half \ud800"],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(prompt):
    with pytest.raises(ParameterError):
        shared_engine().generate(prompt, GREEDY)
    assert open_slots(shared_engine()) == 0


@pytest.mark.parametrize("prediction", [[3, 1024], [-1], [1.5], [True]])
def test_what_is_no_prediction_is_refused(prediction):
    """In a shared pass of the draft model it would have left all others without drafts."""
    with pytest.raises(ParameterError, match="prediction token"):
        shared_engine().stream(CODE, GREEDY, prediction=prediction)
    assert open_slots(shared_engine()) == 0


def test_text_ids_and_messages():
    engine = shared_engine()
    tokenizer = engine.target.tokenizer
    from_ids = engine.generate(tokenizer.encode(CODE, add_special=False), GREEDY)
    assert from_ids.text == engine.generate(CODE, GREEDY).text
    messages = [{"role": "user", "content": "add(1, 2)"}]
    rendered = "<|im_start|>user\nadd(1, 2)<|im_end|>\n<|im_start|>assistant\n"
    assert engine.encode(messages) == engine.encode(rendered)
    both = engine.generate([messages, CODE], GREEDY)
    assert [one.token_ids for one in both] == [plain(rendered).token_ids, plain(CODE).token_ids]
    assert both[0].prompt_tokens == len(engine.encode(messages)) == both[0].report.prompt_tokens


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('system role not supported') }}", "system role not supported"),
        ("{{ messages[0]['content'] + 1 }}", "chat template fails"),
        ("{% if %}", "chat template is broken"),
    ],
)
def test_template_errors_are_clear_and_harmless(template, words):
    """B39."""
    engine = load(dataclasses.replace(model(), chat_template=template))
    with pytest.raises(TemplateError, match=words):
        engine.generate([{"role": "system", "content": "x"}], GREEDY)
    assert engine.generate(CODE, GREEDY).token_ids == plain(CODE).token_ids


@pytest.mark.parametrize("draft_context", [None, 40])
def test_every_prompt_length_up_to_the_context(draft_context):
    """B28: no position beyond the end in either model (their runtimes raise there), and the same tokens."""
    engine = new_engine(context=64, draft_context=draft_context)
    prompts = [ids(count) for count in range(1, 65)]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    found, expected = (engine.generate(prompts, params, gamma=gamma) for gamma in (5, 0))
    for prompt, one, other in zip(prompts, found, expected, strict=True):
        assert one.token_ids == other.token_ids, len(prompt)
        assert len(one.token_ids) == min(20, 64 - len(prompt))
        assert one.finish_reason == other.finish_reason == "length"
        assert not one.report.warnings
    assert sum(one.report.accepted for one in found) > 50


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prompts_at_and_over_the_limit(drafter):
    """B29: 63 tokens leave room for one, 64 for none; longer ones are refused, and the next one works."""
    engine = new_engine(drafter, context=64)
    for count in (65, 69, 70, 1000):
        with pytest.raises(ContextError, match=f"{count} tokens, but the model's context ends at 64"):
            engine.generate(ids(count), GREEDY)
    for count, left in ((62, 2), (63, 1), (64, 0)):
        for max_tokens in (None, 20):
            result = engine.generate(ids(count), SamplingParams(max_tokens=max_tokens, ignore_eos=True), gamma=5)
            assert (len(result.token_ids), result.finish_reason) == (left, "length")
            assert result.report.emitted == left


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_gamma_larger_than_what_is_left(drafter, count):
    """B20, B21: exactly what was asked for, and never more drafted than could be used."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    result = shared_engine(drafter).generate(CODE, params, gamma=64)
    assert result.token_ids == plain(CODE, params).token_ids
    assert (len(result.token_ids), result.finish_reason, result.report.emitted) == (count, "length", count)
    assert result.report.drafted <= max(0, count - 1) * max(1, result.report.target_passes)
    assert (result.text == "") == (count == 0)


def test_no_limit_ends_with_the_context_or_an_end_token():
    """B21."""
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    result = new_engine("own", context=64).generate(CODE, params)
    assert result.finish_reason == "length" and result.prompt_tokens + len(result.token_ids) == 64
    end = result.token_ids[12]
    ended = new_engine("own", context=64, end_tokens=[end]).generate(CODE, SamplingParams(max_tokens=None))
    assert ended.finish_reason == "stop" and ended.token_ids == result.token_ids[: result.token_ids.index(end) + 1]
