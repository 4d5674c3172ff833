"""The thread that runs the engine, and what joins it to asyncio.

Only this thread touches the engine once it serves. Handlers hand it jobs and read updates from a queue of the event
loop; a job that is given up is cancelled before the next round.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..core.report import Report
from ..engine.engine import Engine
from ..engine.stream import Event, Result, Stream
from .bodies import Live
from .errors import ApiError
from .places import Place
from .plan import AnswerPlan

logger = logging.getLogger("outpace")

MOST_UNREAD = 16  # updates of a job; beyond them its streams gather further updates, and send them as one


@dataclass(frozen=True)
class Update:
    """What a round brought for the answer ``index`` of a job; with its last event comes its result. ``cut``: time ran
    out before the answer's own end."""

    index: int
    event: Event
    live: Live | None
    result: Result | None
    cut: bool = False


@dataclass(eq=False)
class Job:
    """The answers of one HTTP request. Made by :meth:`Worker.open`; whoever made it calls :meth:`Worker.close`.
    A reader that lags behind holds up nobody: its answers run to their ends, and free their ``place`` there."""

    plan: AnswerPlan
    show: bool
    place: Place
    updates: asyncio.Queue[Update | Exception] = field(default_factory=asyncio.Queue)
    streams: dict[int, Stream] = field(default_factory=dict)  # those that have not ended; the worker's own
    posted: int = 0  # updates; the worker's own
    taken: int = 0  # of them; the reader's own
    given_up: bool = False
    expired: bool = False  # time has run out: what there is of its answers is all that comes
    opened: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    timer: asyncio.TimerHandle | None = None

    async def next(self) -> Update:
        """The next update. Raises what ended the job."""
        update = await self.updates.get()
        self.taken += 1
        if isinstance(update, Exception):
            raise update
        return update

    def fail(self, error: Exception) -> None:
        """End the job: whoever reads its updates gets the error."""
        self.given_up = True
        self.updates.put_nowait(error)

    def over(self) -> None:
        """The engine has nothing left to do for it."""
        if self.timer is not None:
            self.timer.cancel()
        self.place.free()


class Worker:
    """Steps the engine while anything is open. ``timeout``: seconds that a job may take."""

    def __init__(self, engine: Engine, timeout: float) -> None:
        self._engine, self.timeout = engine, timeout
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
        cost_model = self._engine.cost_model
        return 1 / cost_model.plain if cost_model else None

    @property
    def plain_measured_at(self) -> int | None:
        """Unix time of the last round that corrected :attr:`plain_tokens_per_second`; None before the first one."""
        cost_model = self._engine.cost_model
        return int(cost_model.observed) if cost_model and cost_model.observed else None

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

    async def submit(self, plan: AnswerPlan, show: bool, place: Place) -> Job:
        """Queue a request's answers, for which it has its ``place``. Raises what the engine refuses."""
        job = Job(plan, show, place)
        job.timer = self._loop.call_later(self.timeout, setattr, job, "expired", True)
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
        """Give up what of the job still runs, and its place. Must be called for every job, by the loop."""
        job.given_up = True
        job.over()

    async def run(self, steps: Generator[Any, None, None], job: Job) -> list[Any]:
        """What some work with the engine yields, done step by step between the rounds, unless the job is given up."""
        chore = _Chore(steps, job, self.timeout, self._loop.create_future())
        with self._wake:
            if self._stopping:
                raise _shutting_down()
            self._chores.append(chore)
            self._wake.notify()
        return await chore.future

    def _run(self) -> None:
        chores: list[_Chore] = []
        while True:
            with self._wake:
                while not (self._jobs or self._arriving or self._chores or chores or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    break
            self._round(chores)
        self._end_all([*self._jobs, *self._arriving], chores)

    def _round(self, chores: list[_Chore]) -> None:
        """One round. Its locals end with it: what waits for the next request holds nothing of the last."""
        with self._wake:
            arriving, self._arriving = self._arriving, []
            chores += self._chores
            self._chores = []
        calls: list[Callable[[], None]] = []  # for the event loop, told once a round
        for job in arriving:
            self._open(job, calls)
        if chores:
            chore = chores.pop(0)
            if chore.advance(calls):
                chores.append(chore)
        if self._jobs:
            try:
                self._engine.step()
            except Exception:  # those that it ended learn of it from their streams
                logger.exception("a round failed")
            self._jobs = [job for job in self._jobs if self._look(job, calls)]
        if calls:
            self._loop.call_soon_threadsafe(_call, calls)

    def _open(self, job: Job, calls: list[Callable[[], None]]) -> None:
        try:
            if job.given_up:
                raise ApiError(499, "the request was given up")
            for index, wanted in enumerate(job.plan.answers):
                job.streams[index] = self._engine.stream(wanted.prompt, wanted.params, **wanted.options)
        except Exception as error:
            job.given_up = True
            calls.append(partial(_settle, job.opened, None, error))
        else:
            calls.append(partial(_settle, job.opened, None, None))
        self._jobs.append(job)  # also one that failed: what it had opened has to be freed

    def _look(self, job: Job, calls: list[Callable[[], None]]) -> bool:
        """Pass on what is new; whether anything of the job is left."""
        updates: list[Update] = []
        reports = [stream.report for stream in job.streams.values()]
        expired = job.expired  # of one mind for all its streams: they end together
        for index, stream in list(job.streams.items()):
            if job.given_up or expired:
                stream.cancel()
            if not stream.ended and job.posted - job.taken >= MOST_UNREAD:
                continue
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
                update = Update(index, event, live, stream.result)
                updates.append(_cut(update) if event.finish_reason == "cancelled" else update)
        if updates and not job.posted and all(update.cut and not update.event.token_ids for update in updates):
            calls.append(partial(job.fail, _too_late(reports, self.timeout)))
            job.given_up = True
        elif updates:
            job.posted += len(updates)
            calls += [partial(job.updates.put_nowait, update) for update in updates]
        if not job.streams:
            calls.append(job.over)
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
    timeout: float
    future: asyncio.Future[list[Any]]
    found: list[Any] = field(default_factory=list)

    def advance(self, calls: list[Callable[[], None]]) -> bool:
        """One step; whether there is more to do."""
        try:
            if self.job.given_up:
                self.steps.close()
                raise ApiError(499, "the request was given up")
            if self.job.expired:
                self.steps.close()
                raise _unread(self.timeout)
            self.found.append(next(self.steps))
            return True
        except StopIteration:
            calls.append(partial(_settle, self.future, self.found, None))
        except Exception as error:
            calls.append(partial(_settle, self.future, None, error))
        return False


def _cut(update: Update) -> Update:
    """The end of an answer whose time ran out: as clients know it, it reached a limit of its length."""
    assert update.result is not None
    event, result = replace(update.event, finish_reason="length"), replace(update.result, finish_reason="length")
    return replace(update, event=event, result=result, cut=True)


def _too_late(reports: list[Report], timeout: float) -> ApiError:
    """Of a request whose time ran out before its first token."""
    if any(report.seconds_prefill or report.seconds_target for report in reports):
        return _unread(timeout)
    return ApiError(503, f"the request waited for {timeout:g} seconds, its time here; try again later",
                    code="timeout", headers={"retry-after": "1"})  # fmt: skip


def _unread(timeout: float) -> ApiError:
    return ApiError(408, f"the prompt was not read within {timeout:g} seconds, the server's time for an answer",
                    code="timeout", headers={"x-should-retry": "false"})  # fmt: skip


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
