"""How a request is answered, streamed or whole, whatever the shape of its choices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..core.errors import ContextError
from ..engine.stream import Result
from .answers import Answers
from .errors import ApiError, from_exception, too_long
from .metrics import Metrics, Stopwatch
from .plan import AnswerPlan
from .requests import ChatRequest, CompletionRequest
from .worker import Job, Update, Worker


class Format(Protocol):
    """The shape of a kind of completion."""

    name: str
    chunk_name: str
    prefix: str

    def opening(self) -> list[Any]: ...

    def piece(self, update: Update) -> Any: ...

    def whole(self, index: int, result: Result) -> Any: ...


async def respond(
    request: Request,
    body: ChatRequest | CompletionRequest,
    plan: AnswerPlan,
    make_format: Callable[[Job], Awaitable[Any]],
    *,
    worker: Worker,
    metrics: Metrics,
    model: str,
) -> Response:
    """Answer a planned request. ``make_format`` gives the :class:`Format`.

    A stream's headers are sent with its first token, so that what fails before has its proper status.
    """
    watch = Stopwatch(metrics)
    try:
        job = await worker.submit(plan, body.speculation.show, request.state.place)
    except ContextError as error:
        raise too_long(error, plan.field) from None
    answers = Answers(plan, worker.plain_tokens_per_second, worker.timeout)

    def take(update: Update) -> Update:
        watch.event(update.index, update.result is not None)
        if update.result is not None:
            answers.results[update.index] = update.result
            answers.cut = answers.cut or update.cut
            metrics.ended(update.result)
        return update

    streaming = False
    watcher = asyncio.create_task(_watch(request, job))
    try:
        shape: Format = await make_format(job)
        head = {"id": shape.prefix + uuid.uuid4().hex, "object": shape.name, "created": int(time.time())}
        head["model"] = model
        first = take(await job.next())
        if body.stream:
            streaming = True
            head["object"] = shape.chunk_name
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            return _Stream(_events(first, take, job, answers, shape, head, with_usage), worker, job, metrics)
        while not answers.done:
            take(await job.next())
    finally:
        watcher.cancel()
        if not streaming:
            worker.close(job)
            metrics.closed(job.expired, answers.done)
    choices = [shape.whole(index, answers.results[index]) for index in range(len(plan.answers))]
    return JSONResponse({**head, "choices": choices, "usage": answers.usage(), "outpace": answers.speculation()})


async def _watch(request: Request, job: Job) -> None:
    """End the job as soon as the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.fail(ApiError(499, "the client has gone"))


async def _events(
    first: Update,
    take: Callable[[Update], Update],
    job: Job,
    answers: Answers,
    shape: Format,
    head: Mapping[str, object],
    with_usage: bool,
) -> AsyncIterator[bytes]:
    """The events of a stream. An error becomes the last one, without [DONE]."""
    extra = {"usage": None} if with_usage else {}
    try:
        for choice in shape.opening():
            yield _sse({**head, "choices": [choice], **extra})
        update = first
        while True:
            choice = shape.piece(update)
            last = {"outpace": answers.speculation()} if answers.done else {}
            if last or _says_something(choice):
                yield _sse({**head, "choices": [choice], **extra, **last})
            if last:
                break
            update = take(await job.next())
        if with_usage:
            yield _sse({**head, "choices": [], "usage": answers.usage()})
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _sse(from_exception(error).body)


def _says_something(choice: Mapping[str, Any]) -> bool:
    text = choice["delta"] if "delta" in choice else choice["text"]
    return bool(text or choice["logprobs"] or choice["finish_reason"] or "outpace" in choice)


def _sse(data: Mapping[str, Any]) -> bytes:
    """One event. Escaped to ASCII, so that nothing in it can be taken for the end of a line."""
    return b"data: " + json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n\n"


class _Stream(StreamingResponse):
    """Frees its job however it ends, also when it was never begun."""

    def __init__(self, events: AsyncIterator[bytes], worker: Worker, job: Job, metrics: Metrics) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._worker, self._job, self._metrics = worker, job, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent_all = False

        async def noting(message: Any) -> None:
            nonlocal sent_all
            await send(message)
            sent_all = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            with contextlib.suppress(OSError):  # the client has gone
                await super().__call__(scope, receive, noting)
        finally:
            self._worker.close(self._job)
            self._metrics.closed(self._job.expired, sent_all)
