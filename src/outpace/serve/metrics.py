"""Counts for Prometheus, in a registry of the application's own."""

from __future__ import annotations

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..engine.engine import Engine
from ..engine.stream import Result

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What has been answered, and what it took. Tokens are counted when they have been emitted."""

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"outpace_{name}", about, labels, registry=registry)

        self.requests = counter("requests", "HTTP requests answered", "path", "status")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self.cached_tokens = counter("prompt_cached_tokens", "Tokens of prompts found in the prefix cache")
        self.tokens = counter("tokens", "Tokens emitted, by origin", "origin")
        self.drafted = counter("drafted_tokens", "Tokens drafted")
        self.tested = counter("tested_tokens", "Drafted tokens compared with the target")
        self.accepted = counter("accepted_tokens", "Drafted tokens accepted and emitted")
        self.passes = counter("target_passes", "Verification passes, counted once for each answer in them")
        self.cancelled = counter("cancelled_requests", "Requests given up: the client left, or something failed")
        self.timed_out = counter("timed_out_requests", "Requests whose time ran out before the end of their answers")
        self.warned = counter("drafting_failures", "Answers whose drafting failed and that were decoded plainly")
        self.first_token = Histogram("outpace_first_token_seconds", "From request to first token", (), buckets=_SECONDS,
                                     registry=registry)  # fmt: skip
        self.between = Histogram("outpace_between_events_seconds", "Between an answer's events", (), buckets=_BETWEEN,
                                 registry=registry)  # fmt: skip
        self.seconds = Histogram("outpace_answer_seconds", "From request to the end of an answer", (), buckets=_SECONDS,
                                 registry=registry)  # fmt: skip
        for name, about, read in (
            ("running", "Answers in the batch", lambda: engine.open_requests[0]),
            ("waiting", "Answers waiting to join it", lambda: engine.open_requests[1]),
            ("kv_cache_bytes", "Keys and values held, those kept for later requests included", lambda: engine.kv_bytes),
        ):
            Gauge(f"outpace_{name}", about, registry=registry).set_function(read)

    def ended(self, result: Result) -> None:
        """Count one answer."""
        report = result.report
        self.cached_tokens.inc(report.prompt_cached)
        self.prompt_tokens.inc(report.prompt_tokens)
        for origin in set(result.origins):
            self.tokens.labels(origin).inc(result.origins.count(origin))
        self.drafted.inc(report.drafted)
        self.tested.inc(report.tested)
        self.accepted.inc(report.accepted)
        self.passes.inc(report.target_passes)
        self.warned.inc(bool(report.warnings))

    def closed(self, expired: bool, whole: bool) -> None:
        """Count how a request ended: out of time, or before ``whole`` its answer was sent."""
        self.timed_out.inc(expired)
        self.cancelled.inc(not expired and not whole)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)


class Counted:
    """ASGI middleware: counts requests by path and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"  # a client must not make new series
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counting)


class Stopwatch:
    """Times one request's events into the histograms."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._start = metrics, perf_counter()
        self._last: dict[int, float] = {}

    def event(self, index: int, ended: bool) -> None:
        now = perf_counter()
        if index in self._last:
            self._metrics.between.observe(now - self._last[index])
        else:
            self._metrics.first_token.observe(now - self._start)
        self._last[index] = now
        if ended:
            self._metrics.seconds.observe(now - self._start)
