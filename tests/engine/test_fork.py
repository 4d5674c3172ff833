"""Forked children: the parent's engine works where nothing was under way, else it raises at once; a new one works.

Each backend runs in a process of its own, with a timeout: what must not happen is that a child waits for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, multiprocessing, os, signal, sys, threading

import outpace
from outpace.core.errors import ForkError

backend = sys.argv[1]
PARAMS = outpace.SamplingParams(temperature=0, max_tokens=8)
LONG = outpace.SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def new_engine():
    return outpace.load("tiny", backend=backend, threads=2, controller="fixed", drafter="lookup")


def answer(engine):
    return engine.generate("def f", PARAMS).token_ids


def in_child(work, fork=os.fork):
    \"\"\"What ``work`` returns in a child, or the name of what it raises; a child that hangs is ended.\"\"\"
    read, write = os.pipe()
    child = fork()
    if child == 0:
        signal.alarm(20)
        try:
            found = repr(work())
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        os.write(write, found.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found or "hung"


def refused(found):
    assert found.startswith("ForkError") and "load the model in the child" in found and "spawn" in found, found


engine = new_engine()
before = in_child(lambda: answer(engine))
expected = answer(engine)
assert before == repr(expected), before
assert in_child(lambda: answer(engine)) == repr(expected)
assert in_child(lambda: answer(new_engine())) == repr(expected)
assert in_child(lambda: in_child(lambda: answer(engine))) == repr(repr(expected)), "a child's child"
assert in_child(lambda: engine.measure_costs() is None) == "True"
assert answer(engine) == expected, "the parent goes on"

context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
workers = [context.Process(target=lambda: queue.put(answer(engine))) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(30)
    assert worker.exitcode == 0, "a process of multiprocessing hung or failed"
assert [queue.get() for _ in workers] == [expected] * 2

# A request is open, and nobody is in a round.
stream = engine.stream("def f", LONG)
next(stream)
for use in (lambda: next(stream), stream.poll, engine.step, lambda: answer(engine), lambda: engine.stream("a", PARAMS),
            engine.measure_costs):
    refused(in_child(use))
assert in_child(lambda: answer(new_engine())) == repr(expected)
stream.close()
assert in_child(lambda: answer(engine)) == repr(expected)

# Another thread is in a round at the fork, and holds the locks.
inside, go = threading.Event(), threading.Event()
forward = engine.target.runtime.forward


def held(*args, **more):
    inside.set()
    go.wait(60)
    return forward(*args, **more)


engine.target.runtime.forward = held
thread = threading.Thread(target=answer, args=(engine,))
thread.start()
inside.wait()
for use in (lambda: answer(engine), engine.step, lambda: engine.stream("a", PARAMS), engine.measure_costs):
    refused(in_child(use))
assert in_child(lambda: answer(new_engine())) == repr(expected)
go.set()
thread.join()
engine.target.runtime.forward = forward
assert answer(engine) == expected

# Forks while another thread computes, wherever it happens to be: an answer or the error, never a wait.
stop = threading.Event()


def busy():
    while not stop.is_set():
        engine.generate("def g(x):", LONG)


thread = threading.Thread(target=busy)
thread.start()
found = in_child(lambda: answer(engine))
assert found == repr(expected) or found.startswith("ForkError"), found
assert in_child(lambda: answer(new_engine())) == repr(expected)
stop.set()
thread.join()

# A fork that Python does not see.
libc = ctypes.CDLL(None)
refused(in_child(lambda: answer(engine), libc.fork))
refused(in_child(new_engine, libc.fork))
refused(in_child(lambda: in_child(new_engine), libc.fork).strip("'\\""))
print("all right")
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_forked_children(backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, backend],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.endswith("all right\n"), (done.returncode, done.stdout, done.stderr)
