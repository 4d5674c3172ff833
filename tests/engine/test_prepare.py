"""What is worked out of a request before it is opened: once, and never by the thread that makes the rounds."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.helpers.serving import serving
from tests.helpers.shipped import model, new_engine

from outpace.core.errors import ParameterError
from outpace.core.types import Constraint, SamplingParams
from outpace.engine import engine as engine_module
from outpace.sampling.grammar import Grammars

CODE = "class Stack:\n    def __init__(self):\n        self."


def constrained(pattern: str) -> SamplingParams:
    return SamplingParams(max_tokens=4, constraint=Constraint("regex", pattern))


@pytest.fixture
def compiling(monkeypatch):
    """Threads that compiled each constraint, and events that its compilation waits for."""
    whole, seen, gates = Grammars._compile, {}, {}

    def watched(self, constraint):
        seen.setdefault(constraint.text, []).append(threading.get_ident())
        if constraint.text in gates:
            gates[constraint.text].wait(10)
        return whole(self, constraint)

    monkeypatch.setattr(Grammars, "_compile", watched)
    return seen, gates


def test_rounds_go_on_while_a_constraint_is_compiled(compiling):
    seen, gates = compiling
    gate = gates["slow"] = threading.Event()
    one = new_engine()
    one.prepare(constrained("known"))
    stream = one.stream(CODE, SamplingParams(max_tokens=20, ignore_eos=True))
    with ThreadPoolExecutor(2) as pool:
        try:
            slow = [pool.submit(one.generate, CODE, constrained("slow")) for _ in range(2)]
            while "slow" not in seen:
                pass
            assert one.generate(CODE, constrained("known")).text.startswith("k")
            assert sum(len(event.token_ids) for event in stream) == 20
            assert not any(future.done() for future in slow)
        finally:
            gate.set()
        assert {future.result().text for future in slow} == {slow[0].result().text}
    assert {text: len(threads) for text, threads in seen.items()} == {
        "known": 2,
        "slow": 2,
    }  # a matcher for the target, one for drafts


def test_a_constraint_that_fails_fails_for_all_who_wait_and_is_tried_again(compiling):
    seen, gates = compiling
    gate = gates["("] = threading.Event()
    grammars = Grammars(model("tiny").tokenizer, model("tiny").end_tokens)
    with ThreadPoolExecutor(2) as pool:
        tries = [pool.submit(grammars.compiled, Constraint("regex", "(")) for _ in range(2)]
        while "(" not in seen:
            pass
        gate.set()
        for future in tries:
            with pytest.raises(ParameterError):
                future.result()
    before = len(seen["("])
    with pytest.raises(ParameterError):
        grammars.compiled(Constraint("regex", "("))
    assert len(seen["("]) == before + 1


def test_what_was_prepared_is_opened_without_compiling_whatever_was_forgotten(compiling):
    seen, _ = compiling
    one = new_engine()
    prepared = [one.prepare(constrained(f"a{{{n}}}")) for n in range(1, 21)]
    assert len(seen) == 20
    for _ in range(2):
        for n, ready in enumerate(prepared, start=1):
            text = "".join(event.text for event in one.stream(CODE, ready))
            assert text == "a" * len(text) and 0 < len(text) <= n
    assert all(len(threads) == 2 for threads in seen.values())  # one matcher for the target, one for drafts


def test_the_engines_thread_compiles_nothing_and_a_prediction_is_read_once(monkeypatch, compiling):
    seen, _ = compiling
    engine, read, whole = new_engine(), [], engine_module.checked_tokens

    def watched(tokens, size, where):
        if where == "prediction" and tokens:
            read.append(threading.get_ident())
        return whole(tokens, size, where)

    monkeypatch.setattr(engine_module, "checked_tokens", watched)
    with serving(engine) as server:
        for n in range(1, 21):
            body = {"type": "regex", "regex": f"b{{{n}}}"}
            server.complete(prompt=CODE, max_tokens=2, n=2, response_format=body)
        one = server.complete(
            prompt=CODE, max_tokens=2, n=16, prediction={"type": "content", "content": "self.items = []"}
        )
        thread = next(t.ident for t in threading.enumerate() if t.name == "outpace-engine")
    assert len(one["choices"]) == 16 and len(read) == 1
    assert len(seen) == 20
    assert thread not in {*read, *(ident for threads in seen.values() for ident in threads)}


def test_a_prediction_is_given_once():
    one = new_engine()
    with pytest.raises(ParameterError, match="prepared already"):
        one.stream(CODE, one.prepare(prediction="self.items"), prediction="self.items")
    with pytest.raises(ParameterError, match="prediction token"):
        one.prepare(prediction=[1, 1 << 40])
