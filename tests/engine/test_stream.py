"""Streams on the shipped tiny pair: what is shown is the result, nothing more, and leaving early frees everything."""

import gc
from itertools import product

import pytest
from tests.helpers.shipped import new_engine, open_slots, shared_engine

from outpace import SamplingParams

CODE = "def read(path):\n    with open(path) as f:\n        return"
PROMPTS = [CODE, "class A:\n    x = 1\n    x = 1\n", "# naïve 東京 "]
STOPS = [(), ("\n",), ("  ", "return"), ("n", "self."), ("e(", ")\n", "ath")]
GREEDY = SamplingParams(max_tokens=24)


def pieces(stream):
    """The events; the texts' sum is a beginning of the final text at any time."""
    events = list(stream)
    shown = ""
    for event in events:
        shown += event.text
        assert stream.result.text.startswith(shown)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason == stream.result.finish_reason
    assert all(event.text or event.token_ids for event in events[:-1])
    return events


@pytest.mark.parametrize("drafter", ["draft_model", "lookup", "own", "none"])
@pytest.mark.parametrize("stop", STOPS)
def test_pieces_joined_are_the_result(drafter, stop):
    """B18, B35, B36: greedy, sampled, and hot enough for broken characters; nothing behind a stop is ever shown."""
    engine, plain = shared_engine(drafter), shared_engine("none")
    for prompt, (temperature, seed) in product(PROMPTS, [(0.0, 0), (1.0, 1), (20.0, 2)]):
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=24, stop=stop)
        stream = engine.stream(prompt, params, gamma=6)
        events = pieces(stream)
        result, whole = stream.result, plain.generate(prompt, params)
        assert "".join(event.text for event in events) == result.text == whole.text
        assert [t for event in events for t in event.token_ids] == result.token_ids == whole.token_ids
        assert result.finish_reason == whole.finish_reason
        assert result.report.emitted == len(result.token_ids)
        assert not any(text in result.text for text in stop)
        if not stop:
            assert result.text == engine.target.tokenizer.decode(result.token_ids)
    assert open_slots(engine) == 0


def test_several_pieces_come_before_the_end():
    assert len(list(shared_engine().stream(CODE, GREEDY, gamma=2))) > 5


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_anything(count):
    stream = shared_engine().stream(CODE, SamplingParams(max_tokens=count))
    events = pieces(stream)
    assert sum(len(event.token_ids) for event in events) == count == len(stream.result.token_ids)
    assert stream.result.finish_reason == "length"


@pytest.mark.parametrize("drafter", ["draft_model", "lookup", "own", "none"])
@pytest.mark.parametrize("read", [0, 1, 3])
def test_closing_early_keeps_what_was_there(drafter, read):
    """B53: before the first token, and in the middle."""
    engine = new_engine(drafter)
    whole = engine.generate(CODE, GREEDY)
    with engine.stream(CODE, GREEDY, gamma=3) as stream:
        shown = "".join(next(stream).text for _ in range(read))
        assert (open_slots(engine) > 0) == (read > 0)
    assert open_slots(engine) == 0
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert result.text.startswith(shown) and whole.text.startswith(result.text)
    assert result.token_ids == whole.token_ids[: len(result.token_ids)]
    assert len(result.token_ids) == result.report.emitted >= read
    assert list(stream) == []  # it stays closed
    stream.close()
    assert stream.result is result


def test_fifty_clients_that_leave():
    """B53: nothing is left over, and the next request is served."""
    engine = new_engine()
    for _ in range(50):
        stream = engine.stream(CODE, GREEDY)
        next(stream)
        stream.close()
    assert open_slots(engine) == 0
    assert engine.generate(CODE, GREEDY).token_ids == shared_engine("none").generate(CODE, GREEDY).token_ids


@pytest.mark.parametrize("read", [0, 1])
def test_forgotten_streams_are_closed_when_collected(read):
    engine = new_engine()
    stream = engine.stream(CODE, GREEDY)
    for _ in range(read):
        next(stream)
    del stream
    gc.collect()
    assert not engine.step()  # what it held goes before the next round
    assert open_slots(engine) == 0


def test_the_result_is_there_with_the_last_event():
    """A reader may leave as soon as it sees a finish reason: that is no cancelling."""
    engine = new_engine()
    stream = engine.stream(CODE, GREEDY)
    for event in stream:
        assert (stream.result is None) == (event.finish_reason is None)
        if event.finish_reason is not None:
            break
    assert stream.result.finish_reason == "length"
    assert open_slots(engine) == 0
    stream.close()
    assert stream.result.finish_reason == "length"


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_what_interrupts_a_stream_frees_it(error, after, monkeypatch):
    engine = new_engine()
    runtime = engine.target.runtime
    forward, left = runtime.forward, [after]

    def failing(*args, **kwargs):
        left[0] -= 1
        if left[0] <= 0:  # and it goes on failing
            raise error
        return forward(*args, **kwargs)

    whole = engine.generate(CODE, GREEDY)
    monkeypatch.setattr(runtime, "forward", failing)
    stream, events = engine.stream(CODE, GREEDY), []
    with pytest.raises(type(error)):
        events.extend(stream)  # keeps what came before the error
    shown = "".join(event.text for event in events)
    assert stream.result.finish_reason == "error"
    assert stream.result.text.startswith(shown) and whole.text.startswith(stream.result.text)
    assert open_slots(engine) == 0


@pytest.mark.parametrize("drafter", ["draft_model", "lookup", "own"])
def test_interleaved_streams_are_as_alone(drafter):
    engine = new_engine(drafter)
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=10 + 5 * i) for i in range(3)]
    streams = [engine.stream(prompt, one) for prompt, one in zip(PROMPTS, params, strict=True)]
    running = list(streams)
    while running:
        running = [stream for stream in running if next(stream, None) is not None]
    for stream, prompt, one in zip(streams, PROMPTS, params, strict=True):
        assert stream.result.token_ids == shared_engine("none").generate(prompt, one).token_ids
    assert open_slots(engine) == 0
