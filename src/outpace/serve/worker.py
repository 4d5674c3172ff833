"""The thread that runs the engine, and what joins it to asyncio.

Only this thread touches the engine once it serves. Handlers hand it jobs and read updates from a queue of the event
loop; a job that is given up is cancelled before the next round.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..core.report import Report
from ..engine.engine import Engine
from ..engine.stream import Event, Result, Stream
from .bodies import Live
from .errors import ApiError
from .plan import Plan

logger = logging.getLogger("outpace")


@dataclass(frozen=True)
class Update:
    """What a round brought for the answer ``index`` of a job; with its last event comes its result."""

    index: int
    event: Event
    live: Live | None
    result: Result | None


@dataclass(eq=False)
class Job:
    """The answers of one HTTP request. Made by :meth:`Worker.open`; whoever made it calls :meth:`Worker.close`."""

    plan: Plan
    show: bool
    updates: asyncio.Queue[Update | Exception] = field(default_factory=asyncio.Queue)
    streams: dict[int, Stream] = field(default_factory=dict)  # those that have not ended; the worker's own
    given_up: bool = False
    opened: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    timer: asyncio.TimerHandle | None = None

    async def next(self) -> Update:
        """The next update. Raises what ended the job."""
        update = await self.updates.get()
        if isinstance(update, Exception):
            raise update
        return update

    def fail(self, error: Exception) -> None:
        """End the job: whoever reads its updates gets the error."""
        self.given_up = True
        self.updates.put_nowait(error)


class Worker:
    """Steps the engine while anything is open. ``most_open``: answers running and waiting. ``timeout``: seconds that
    a job may take."""

    def __init__(self, engine: Engine, most_open: int, timeout: float) -> None:
        self._engine, self._most_open, self._timeout = engine, most_open, timeout
        self._count = 0  # answers of jobs that are not closed; of the event loop
        self._jobs: list[Job] = []
        self._arriving: list[Job] = []
        self._chores: list[_Chore] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Of plain decoding, alone: as measured at the load, corrected by the rounds since."""
        prices = self._engine.prices
        return 1 / prices.plain if prices else None

    @property
    def plain_measured_at(self) -> int | None:
        """Unix time of the last round that corrected :attr:`plain_tokens_per_second`; None before the first one."""
        prices = self._engine.prices
        return int(prices.observed) if prices and prices.observed else None

    def start(self) -> None:
        """From the event loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._engine.measure_costs()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="outpace-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End all jobs with an error, and the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def submit(self, plan: Plan, show: bool) -> Job:
        """Queue a request's answers. Raises ApiError 429 when too much is queued, and what the engine refuses."""
        size = len(plan.answers)
        if size > self._most_open:
            raise ApiError(400, f"n asks for {size} answers, but this server runs {self._most_open} at most", param="n")
        if self._count + size > self._most_open:
            raise ApiError(429, "too many requests are waiting; try again soon", code="queue_full",
                           headers={"retry-after": "1"})  # fmt: skip
        job = Job(plan, show)
        self._count += size
        job.timer = self._loop.call_later(self._timeout, self._expire, job)
        try:
            with self._wake:
                if self._stopping:
                    raise _shutting_down()
                self._arriving.append(job)
                self._wake.notify()
            await job.opened
        except BaseException:
            self.close(job)
            raise
        return job

    def close(self, job: Job) -> None:
        """Give up what of the job still runs, and its place. Must be called once for every job, by the loop."""
        job.given_up = True
        if job.timer is not None:
            job.timer.cancel()
        self._count -= len(job.plan.answers)

    async def run(self, steps: Generator[Any, None, None], job: Job) -> list[Any]:
        """What some work with the engine yields, done step by step between the rounds, unless the job is given up."""
        chore = _Chore(steps, job, self._loop.create_future())
        with self._wake:
            if self._stopping:
                raise _shutting_down()
            self._chores.append(chore)
            self._wake.notify()
        return await chore.future

    def _expire(self, job: Job) -> None:
        job.fail(ApiError(408, f"the answer took longer than {self._timeout:g} seconds", code="timeout",
                          headers={"x-should-retry": "false"}))  # fmt: skip

    def _run(self) -> None:
        chores: list[_Chore] = []
        while True:
            with self._wake:
                while not (self._jobs or self._arriving or self._chores or chores or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    break
                arriving, self._arriving = self._arriving, []
                chores, self._chores = [*chores, *self._chores], []
            calls: list[Callable[[], None]] = []  # for the event loop, told once a round
            for job in arriving:
                self._open(job, calls)
            if chores and chores[0].advance(calls):
                chores.append(chores.pop(0))
            elif chores:
                chores.pop(0)
            if self._jobs:
                try:
                    self._engine.step()
                except Exception:  # those that it ended learn of it from their streams
                    logger.exception("a round failed")
                self._jobs = [job for job in self._jobs if self._look(job, calls)]
            if calls:
                self._loop.call_soon_threadsafe(_call, calls)
        self._end_all([*self._jobs, *self._arriving], chores)

    def _open(self, job: Job, calls: list[Callable[[], None]]) -> None:
        try:
            if job.given_up:
                raise ApiError(499, "the request was given up")
            for index, wanted in enumerate(job.plan.answers):
                job.streams[index] = self._engine.open(wanted.prompt, wanted.params, **wanted.options)
        except Exception as error:
            job.given_up = True
            calls.append(partial(_settle, job.opened, None, error))
        else:
            calls.append(partial(_settle, job.opened, None, None))
        self._jobs.append(job)  # also one that failed: what it had opened has to be freed

    def _look(self, job: Job, calls: list[Callable[[], None]]) -> bool:
        """Pass on what is new; whether anything of the job is left."""
        for index, stream in list(job.streams.items()):
            if job.given_up:
                stream.cancel()
            try:
                event = stream.poll()
            except Exception as error:
                del job.streams[index]
                if not job.given_up:
                    calls.append(partial(job.fail, error))
                job.given_up = True  # its other answers are of no use
                continue
            if stream.result is not None:
                del job.streams[index]
            if event is not None and not job.given_up:
                live = live_of(stream.report, self.plain_tokens_per_second) if job.show else None
                calls.append(partial(job.updates.put_nowait, Update(index, event, live, stream.result)))
        return bool(job.streams)

    def _end_all(self, jobs: list[Job], chores: list[_Chore]) -> None:
        calls: list[Callable[[], None]] = []
        for job in jobs:
            for stream in job.streams.values():
                stream.cancel()
            calls += [partial(job.fail, _shutting_down()), partial(_settle, job.opened, None, _shutting_down())]
        self._engine.step()  # nothing is left to run: it frees
        self._jobs, self._arriving = [], []
        for chore in [*chores, *self._chores]:
            chore.steps.close()
            calls.append(partial(_settle, chore.future, None, _shutting_down()))
        self._chores = []
        self._loop.call_soon_threadsafe(_call, calls)


@dataclass(eq=False)
class _Chore:
    steps: Generator[Any, None, None]
    job: Job
    future: asyncio.Future[list[Any]]
    found: list[Any] = field(default_factory=list)

    def advance(self, calls: list[Callable[[], None]]) -> bool:
        """One step; whether there is more to do."""
        try:
            if self.job.given_up:
                self.steps.close()
                raise ApiError(499, "the request was given up")
            self.found.append(next(self.steps))
            return True
        except StopIteration:
            calls.append(partial(_settle, self.future, self.found, None))
        except Exception as error:
            calls.append(partial(_settle, self.future, None, error))
        return False


def live_of(report: Report, plain: float | None) -> Live:
    """The figures of a report that are known while it grows. ``plain``: tokens a second of plain decoding; nothing is
    compared with it before something has been drafted."""
    passes = report.target_passes
    return {
        "alpha": report.alpha,
        "block_efficiency": report.block_efficiency,
        "rows_per_pass": (passes + report.drafted) / passes if passes else None,
        "tokens_per_second": report.tokens_per_second,
        "plain_tokens_per_second": plain if report.drafted else None,
    }


def _call(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():  # its handler was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")
