"""The application: routes over one engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response

from .. import __version__
from ..engine.engine import Engine
from .answers import ChatFormat, Scored, TextFormat
from .bodies import ChatCompletion, Failure, Health, Model, Models, TextCompletion
from .errors import ApiError, install
from .guard import Guard
from .metrics import CONTENT_TYPE, Counted, Metrics
from .page import load_page
from .places import SMALL_BODY, AdmitBodies, Place, Places
from .plan import AnswerPlan, plan_chat, plan_completion
from .requests import ChatRequest, CompletionRequest
from .respond import respond
from .settings import ServerSettings
from .worker import Job, Worker

Body = TypeVar("Body", ChatRequest, CompletionRequest)

_FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Failure, "description": "refused: the message says what to change"},
    "5XX": {"model": Failure, "description": "failed, by no fault of the request"},
}
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}


def create_app(engine: Engine, settings: ServerSettings | None = None) -> FastAPI:
    """An ASGI application that serves one engine; nothing else may step the engine meanwhile."""
    settings = ServerSettings() if settings is None else settings
    worker = Worker(engine, settings.timeout)
    places = Places(settings.most_open)
    metrics = Metrics(engine)
    name = settings.model or engine.target.name
    born = int(time.time())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        # Few threads: each keeps the memory of its greatest work. What takes long has one of its own.
        with ThreadPoolExecutor(1, "outpace-read") as app.state.quick, ThreadPoolExecutor(1, "outpace-read") as slow:
            app.state.slow = slow
            yield
            await worker.stop()

    app = FastAPI(title="Outpace", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    install(app)

    def check_model(asked: str | None) -> None:
        if asked is not None and asked != name:
            raise ApiError(404, f"the model {asked!r} is not served here; {name!r} is", param="model",
                           code="model_not_found")  # fmt: skip

    @app.post("/v1/chat/completions", response_model=None, responses={
        200: {"model": ChatCompletion, "content": _STREAM}, **_FAILURES})  # fmt: skip
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        check_model(body.model)
        plan = await _read(request, plan_chat, engine, body, body.samples)

        async def shape(job: Job) -> ChatFormat:
            return ChatFormat(engine.target.tokenizer, len(plan.answers), plan.calls)

        return await respond(request, body, plan, shape, worker=worker, metrics=metrics, model=name)

    @app.post("/v1/completions", response_model=None, responses={
        200: {"model": TextCompletion, "content": _STREAM}, **_FAILURES})  # fmt: skip
    async def completions(body: CompletionRequest, request: Request) -> Response:
        check_model(body.model)
        plan = await _read(request, plan_completion, engine, body, len(body.prompts) * body.samples)
        tokenizer = engine.target.tokenizer

        async def shape(job: Job) -> TextFormat:
            echoes: list[tuple[str, list[Scored]]] = []
            if body.echo:
                for wanted in plan.answers:
                    if wanted.first_of_prompt:
                        echo = tokenizer.decode(wanted.prompt), await scores(wanted.prompt, body.top, job)
                    echoes.append(echo)
            return TextFormat(tokenizer, [wanted.prompt for wanted in plan.answers], body.top, echoes)

        return await respond(request, body, plan, shape, worker=worker, metrics=metrics, model=name)

    async def scores(prompt: list[int], top: int | None, job: Job) -> list[Scored]:
        if top is None:
            return []
        parts = await worker.run(engine.prompt_logprobs(prompt, top), job)
        return [(prompt[0], None, []), *(one for part in parts for one in part)]

    def model() -> Model:
        template = engine.target.chat_template or ""
        return {
            "id": name, "object": "model", "created": born, "owned_by": "outpace",
            "outpace": {
                "context": engine.target.runtime.context,
                "vocabulary": engine.target.tokenizer.size,
                "drafters": list(engine.drafters),
                "gamma": engine.gamma,
                "accept": list(engine.rules),
                "chat": bool(template),
                "tools": "tools" in template,
                "plain_tokens_per_second": worker.plain_tokens_per_second,
                "plain_measured_at": worker.plain_measured_at,
            },
        }  # fmt: skip

    @app.get("/v1/models", responses=_FAILURES)
    async def models() -> Models:
        return {"object": "list", "data": [model()]}

    @app.get("/v1/models/{model_id:path}", responses=_FAILURES)
    async def one_model(model_id: str) -> Model:
        check_model(model_id)
        return model()

    @app.get("/health", responses=_FAILURES)
    async def health() -> Health:
        if not worker.alive:
            raise ApiError(503, "the engine's thread has ended", code="not_running")
        running, waiting = engine.open_requests
        return {"status": "ok", "running": running, "waiting": waiting}

    @app.get("/metrics", response_class=Response, responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_FAILURES})  # fmt: skip
    async def prometheus() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    page, page_headers = load_page()

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return Response(page, headers=page_headers)

    paths = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    app.add_middleware(
        AdmitBodies, places=places, paths=frozenset(path for path in paths if path.endswith("completions"))
    )
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Counted, metrics=metrics, paths=paths)
    return app


async def _read(
    request: Request, plan: Callable[[Engine, Body, str], AnswerPlan], engine: Engine, body: Body, answers: int
) -> AnswerPlan:
    """What a request asks for, worked out beside the event loop once it has places for its answers."""
    state = request.app.state
    place: Place = request.state.place
    place.grow(answers)
    long = place.body_bytes > SMALL_BODY or body.response_format is not None  # much to tokenize, or to compile
    readers = state.slow if long else state.quick
    return await asyncio.get_running_loop().run_in_executor(readers, plan, engine, body, request.state.tenant)
