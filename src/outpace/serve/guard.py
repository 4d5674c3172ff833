"""What is checked before a request is read: the host it was sent to, its key, the size of its body.
And what is answered when anything fails that nobody foresaw."""

from __future__ import annotations

import hashlib
import hmac

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, from_exception
from .settings import ServerSettings

OPEN_PATHS = ("/", "/health")  # the page holds no secret, and whoever watches the process has no key


class Guard:
    """ASGI middleware. With keys, ``request.state.tenant`` names the key's owner without giving the key away."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings
        self._keys = [hashlib.sha256(key.encode()).digest() for key in settings.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            asked = Headers(scope=scope)
            self._check_host(asked.get("host", ""))
            tenant = "" if scope["path"] in OPEN_PATHS else self._check_key(asked.get("authorization", ""))
            self._check_size(asked.get("content-length"))
        except ApiError as error:
            # The body is left unread, so that the connection cannot be used again.
            headers = {**(error.headers or {}), "connection": "close"}
            answer = JSONResponse(error.body, error.status_code, headers=headers)
            await answer(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, self._counted(receive), noting)
        except Exception as error:  # nobody else caught it: still a clear answer, on a connection that goes on
            if started:
                raise
            known = from_exception(error)
            await JSONResponse(known.body, known.status_code, headers=known.headers)(scope, receive, send)

    def _check_host(self, host: str) -> None:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._settings.hosts and name.lower() not in self._settings.hosts:
            names = ", ".join(sorted(self._settings.hosts))
            message = f"this server answers to the names {names} only; --host opens it to others"
            raise ApiError(400, message, param="Host", code="unknown_host")

    def _check_key(self, authorization: str) -> str:
        if not self._keys:
            return ""
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(given, known) for known in self._keys]  # all of them, whichever fits
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(401, "a valid API key is needed: send Authorization: Bearer KEY", code="invalid_api_key",
                           headers={"www-authenticate": "Bearer"})  # fmt: skip
        return given.hex()[:16]

    def _check_size(self, length: str | None) -> None:
        if length is not None and length.isdecimal() and int(length) > self._settings.most_body:
            raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        """``receive``, but for bodies that grow beyond the limit without having said so."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._settings.most_body:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._settings.most_body} bytes", code="body_too_large")
