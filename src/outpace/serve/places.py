"""Places for answers: a request has its places before anything is worked out for it, or it is refused at once."""

from __future__ import annotations

import contextlib
import ctypes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

SMALL_BODY = 1 << 16  # bytes; a body that grows beyond them needs a place while it still arrives


class Places:
    """``most``: answers that may run and wait at once."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def check(self, count: int = 1) -> None:
        """Raises ApiError 429 when fewer than ``count`` places are free."""
        if self.taken + count > self.most:
            raise ApiError(429, "too many requests are waiting; try again soon", code="queue_full",
                           headers={"retry-after": "1"})  # fmt: skip


class Place:
    """The places of one request. ``body_bytes``: how much of its body has arrived."""

    def __init__(self, places: Places) -> None:
        self._places, self._held = places, 0
        self.body_bytes = 0

    def grow(self, size: int) -> None:
        """Hold ``size`` places. Raises ApiError: 400 for more than there are, 429 for more than are free."""
        if size > self._places.most:
            message = f"n asks for {size} answers, but this server runs {self._places.most} at most"
            raise ApiError(400, message, param="n")
        more = max(0, size - self._held)
        self._places.check(more)
        self._places.taken += more
        self._held += more

    def free(self) -> None:
        """Give the places back; may be called again."""
        self._places.taken -= self._held
        self._held = 0


class AdmitBodies:
    """ASGI middleware: a request for an answer is refused with 429 before its body is read when no place is free.
    It gets its first place, ``request.state.place``, when its body has arrived, so that half-sent bodies keep nobody
    out; or when the body grows large, so that few of those are held at once."""

    def __init__(self, app: ASGIApp, places: Places, paths: frozenset[str]) -> None:
        self._app, self._places, self._paths = app, places, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        self._places.check()
        place = scope.setdefault("state", {})["place"] = Place(self._places)
        arrived = False

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            if arrived:
                return message
            if message["type"] == "http.disconnect":
                raise ApiError(408, "the body did not arrive", code="body_incomplete")
            place.body_bytes += len(message.get("body", b""))
            arrived = not message.get("more_body", False)
            if arrived or place.body_bytes > SMALL_BODY:
                place.grow(1)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            place.free()
            if place.body_bytes > SMALL_BODY:
                _trim()


def _trim() -> None:
    """Give back what a large body left free in the C library's heaps; only glibc keeps it otherwise."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
