"""Connections that keep moving: a request must arrive in time, an answer must be read in time, and there is room for
the next client. uvicorn has no limits for these."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError
from .settings import ServerSettings

SEND_BUFFER = 1 << 15  # bytes that the kernel holds for a reader, so that it soon shows whether one reads
SLOWEST_BODY = 4096  # bytes a second: each such lot gives a body another second (as Apache's mod_reqtimeout does)
YOUNG = 1.0  # seconds that a new connection has to send its request in before another may take its room


class Connection(H11Protocol):
    """One client's connection, looked at some times in each time limit."""

    def __init__(self, settings: ServerSettings, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings
        self._every = min(settings.read_timeout, settings.stall_timeout) / 8
        self._waits_for: str | None = None  # "head" or "body": what of a request is incomplete
        self._since = self._moved = self.loop.time()
        self._received = self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A writer is held up as soon as the kernel takes no more: then what is unsent shrinks only if somebody reads.
        transport.set_write_buffer_limits(high=0)
        self._make_room()
        self._look()
        self._timer = self.loop.call_later(self._every, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._moved, self._unsent = self.loop.time(), self.transport.get_write_buffer_size()

    @property
    def arriving(self) -> bool:
        """Whether no whole request has come that is not answered yet."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _look(self) -> None:
        """Note what the connection waits for, and since when."""
        begun = self.cycle is None or bool(self.conn.trailing_data[0])  # an idle one is uvicorn's keep-alive's affair
        head = self.conn.their_state is h11.IDLE and begun
        waits = "body" if self.conn.their_state is h11.SEND_BODY else "head" if head else None
        if waits != self._waits_for:
            self._waits_for, self._since, self._received = waits, self.loop.time(), 0

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self._every, self._tick)
        self._look()
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent < self._unsent or not unsent:
            self._moved, self._unsent = now, unsent
        if now - self._moved > self._settings.stall_timeout:
            self.transport.abort()  # close() would wait for the reader
            return
        allowed = self._settings.read_timeout
        if self._waits_for == "body":
            allowed += self._received / SLOWEST_BODY
        if self._waits_for is not None and now - self._since > allowed and not self.transport.is_closing():
            self._end_request()

    def _end_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def _make_room(self) -> None:
        """Beyond the limit the connection that has waited longest for its request goes; where all are being answered,
        the new one may ask for the server's health only."""
        if len(self.connections) <= self._settings.most_connections:
            return
        others = [cast(Connection, other) for other in self.connections if other is not self]
        oldest = min((other for other in others if other.arriving), key=lambda other: other._since, default=None)
        if oldest is not None and self.loop.time() - oldest._since > YOUNG:
            oldest.transport.abort()
        else:
            self.app = partial(_crowded, self.app)


async def _crowded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/health":
        await app(scope, receive, send)
        return
    error = ApiError(503, "too many connections are open; try again soon", code="too_many_connections")
    answer = JSONResponse(error.body, error.status_code, headers={"retry-after": "1", "connection": "close"})
    await answer(scope, receive, send)


def server(app: ASGIApp, settings: ServerSettings, listener: socket.socket, **options: Any) -> uvicorn.Server:
    """uvicorn's server for ``app``, whose connections on ``listener`` keep to the settings. ``options``: of
    uvicorn.Config."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # its connections inherit it
    config = uvicorn.Config(
        app, http=cast(Any, partial(Connection, settings)), ws="none", loop="asyncio", lifespan="on",
        log_level="warning", access_log=False, server_header=False, **options,
    )  # fmt: skip
    return uvicorn.Server(config)
