"""Failures in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from ..core.errors import ConstraintError, ContextError, OutpaceError, ParameterError, TemplateError
from .bodies import Failure
from .requests import MOST_PROMPTS

logger = logging.getLogger("outpace")

INTERNAL = "the server failed on this request; its log says why"


class ApiError(HTTPException):
    """A refusal or failure of one request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code = param, code

    @property
    def body(self) -> Failure:
        kinds = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}


def too_long(error: ContextError, field: str) -> ApiError:
    """Of a prompt, in the body's ``field``, that does not fit."""
    return ApiError(400, str(error), param=field, code="context_length_exceeded")


def from_exception(error: Exception) -> ApiError:
    """What a client is told of an error. What is not the client's fault goes to the log, in full. The error's traceback
    ends here: its frames hold the request, and one of them often the error."""
    known = _known(error)
    link: BaseException | None = error
    while link is not None:
        link.__traceback__, link = None, link.__cause__ or link.__context__
    return known


def _known(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StarletteHTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, RequestValidationError):
        return _from_validation(error.errors())
    if isinstance(error, TemplateError):
        return ApiError(400, str(error), param="messages", code="template_refused")
    if isinstance(error, ParameterError):
        return ApiError(400, str(error), param=_named(str(error)), code="invalid_value")
    if isinstance(error, ConstraintError):
        return ApiError(400, str(error), param="response_format", code="constraint_failed")
    logger.error("a request failed", exc_info=error)
    if isinstance(error, OutpaceError):  # ours name the culprit, and nothing of the machine that is secret
        return ApiError(500, str(error), code=type(error).__name__)
    return ApiError(500, INTERNAL, code="internal_error")


def install(app: FastAPI) -> None:
    """Answer errors in OpenAI's shape; those that nobody foresaw are the guard's."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        known = from_exception(error)
        return JSONResponse(known.body, known.status_code, headers=known.headers)

    for kind in (StarletteHTTPException, RequestValidationError, OutpaceError):
        app.add_exception_handler(kind, handle)


def _from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first field at fault. Of a union's complaints the one that got furthest says most, and of those at one place
    the one that did not stop at the value's type: it is of the branch that was meant."""
    if any(error["type"] == "json_invalid" for error in errors):
        reason = errors[0].get("ctx", {}).get("error", "malformed")
        return ApiError(400, f"the body is not valid JSON: {reason}", code="invalid_json")
    places = [[part for part in error["loc"] if part != "body"] for error in errors]
    same = [i for i, place in enumerate(places) if place[:1] == places[0][:1]]
    chosen = max(same, key=lambda i: (len(_path(places[i])), not errors[i]["type"].endswith("_type")))  # the first
    error, path = errors[chosen], _path(places[chosen])
    text = re.sub("^Value error, ", "", str(error["msg"]))
    if not path:  # found by comparing fields: the message begins with the one at fault
        named = _named(text)
        if error["type"] in ("missing", "model_attributes_type"):
            text = "the body must be a JSON object, sent with the content type application/json"
        return ApiError(400, text, param=named, code="invalid_value")
    if error["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field: {path}", param=path, code="unknown_parameter")
    if path.startswith("prompt"):  # a union's complaints contradict each other
        text, path = f"is a text, token ids (at least one), or a list of at most {MOST_PROMPTS} of these", "prompt"
    code = "missing_required_parameter" if error["type"] == "missing" else "invalid_value"
    return ApiError(400, f"{path}: {text}", param=path, code=code)


def _path(place: Sequence[str | int]) -> str:
    """``messages[0].content``; the names that pydantic gives to a union's branches are left out, and token ids."""
    path = ""
    for i, part in enumerate(place[:1] if "logit_bias" in place else place):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part != "str" and not (i == 1 and place[0] == "response_format"):
            path += f".{part}" if path else part
    return path


def _named(text: str) -> str | None:
    """The field that a message of ours begins with, e.g. "top_p must lie in ..."."""
    word = text.split(" ", 1)[0].rstrip(":")
    if word == "constraint":
        return "response_format"
    return word if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", word) and word not in ("the", "a", "an", "one", "no") else None
