"""From a request's body to what the engine is asked for. Everything that can be refused is refused here, but for what
only the engine knows."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core.errors import ContextError, ParameterError
from ..core.types import Constraint, SamplingParams
from ..engine.engine import Engine, Prepared
from ..engine.prompts import Prompt
from .errors import ApiError, too_long
from .requests import (
    MOST_GRAMMAR,
    ByGrammar,
    ChatRequest,
    CompletionRequest,
    JsonObject,
    JsonSchema,
    Message,
    Regex,
    ResponseFormat,
    TextPart,
)

SAFE_INTEGER = 53  # bits of a whole number that every JSON reader keeps


@dataclass(frozen=True)
class WantedAnswer:
    """One answer: arguments of ``engine.open``."""

    prompt: list[int]
    params: Prepared
    options: Mapping[str, Any]
    first_of_prompt: bool  # several answers may share a prompt: it is counted once


@dataclass(frozen=True)
class AnswerPlan:
    """All answers of a request, in the order of their indices. ``field``: the key of its prompt in the body;
    ``calls``: whether functions are offered; ``predicted``: tokens of the prediction."""

    answers: list[WantedAnswer]
    field: str
    predicted: int
    calls: bool = False


def plan_chat(engine: Engine, body: ChatRequest, tenant: str) -> AnswerPlan:
    """Raises ApiError, ParameterError, ContextError, TemplateError."""
    template = engine.target.chat_template
    tools = None
    if body.tools is not None and body.tool_choice != "none":
        if not template or "tools" not in template:
            raise ApiError(400, "tools: the chat template of this model takes none", param="tools")
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
    if len(body.messages) > engine.target.runtime.context:  # each is a token at least, and a template takes long
        raise ApiError(400, f"messages: {len(body.messages)} do not fit the context of {engine.target.runtime.context} "
                       "tokens", param="messages", code="context_length_exceeded")  # fmt: skip
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)]
    plan = _plan(engine, body, [_encode(engine, messages, "messages", tools)], "messages", tenant)
    return replace(plan, calls=tools is not None)


def plan_completion(engine: Engine, body: CompletionRequest, tenant: str) -> AnswerPlan:
    """Raises ApiError, ParameterError, ContextError."""
    try:
        prompts = [_encode(engine, prompt, "prompt") for prompt in body.prompts]
    except ParameterError as error:
        raise ApiError(400, str(error), param="prompt", code="invalid_value") from error
    return _plan(engine, body, prompts, "prompt", tenant)


def _encode(engine: Engine, prompt: Prompt, field: str, tools: list[dict[str, Any]] | None = None) -> list[int]:
    try:
        return engine.encode(prompt, tools, most=engine.target.runtime.context)
    except ContextError as error:
        raise too_long(error, field) from None


def _plan(
    engine: Engine, body: ChatRequest | CompletionRequest, prompts: Sequence[list[int]], field: str, tenant: str
) -> AnswerPlan:
    params = _params(body, engine.target.tokenizer.size)
    wish = body.speculation
    for name, value, known in (("drafter", wish.drafter, engine.drafters), ("accept", wish.accept, engine.rules)):
        if value is not None and value not in known:
            message = f"{name} must be one of {', '.join(known)}, which were loaded, not {value!r}"
            raise ApiError(400, message, param=f"outpace.{name}", code="invalid_value")
    options: dict[str, Any] = {"tenant": tenant, "gamma": 0 if wish.off else wish.gamma, "drafter": wish.drafter,
                               "accept": wish.accept, "rule_options": wish.rule_options}  # fmt: skip
    content = None
    if body.prediction is not None:
        content, context = _text(body.prediction.content), engine.target.runtime.context
        if engine.target.tokenizer.exceeds(content, context):
            raise ApiError(400, f"prediction: it is longer than any answer: the context ends at {context} tokens",
                           param="prediction", code="invalid_value")  # fmt: skip
    prepared = engine.prepare(params, content)
    answers = [
        WantedAnswer(prompt, prepared, {**options, "sample": sample}, sample == 0)
        for prompt in prompts
        for sample in range(body.samples)
    ]
    return AnswerPlan(answers, field, len(prepared.prediction))


def _params(body: ChatRequest | CompletionRequest, vocabulary: int) -> SamplingParams:
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    for name, ids in (("logit_bias", bias), ("stop_token_ids", body.stop_token_ids or [])):
        wrong = next((token for token in ids if token >= vocabulary), None)
        if wrong is not None:
            raise ApiError(400, f"{name}: {wrong} is not a token of the vocabulary of {vocabulary}", param=name)
    given = {
        "temperature": 1.0 if body.temperature is None else body.temperature,  # OpenAI's default
        "seed": secrets.randbits(SAFE_INTEGER) if body.seed is None else body.seed,
        "max_tokens": body.most_tokens,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop or [],
        "logprobs": body.top,
        "logit_bias": bias,
        "constraint": _constraint(body.response_format),
    }
    for name in (one.name for one in fields(SamplingParams)):  # the others are called alike
        if name not in given and getattr(body, name, None) is not None:
            given[name] = getattr(body, name)
    return SamplingParams(**given)  # type: ignore[arg-type]


def _constraint(wanted: ResponseFormat | None) -> Constraint | None:
    if isinstance(wanted, JsonObject):
        return Constraint("json_object")
    if isinstance(wanted, JsonSchema):
        schema = json.dumps(wanted.json_schema.schema_, ensure_ascii=False)
        if len(schema) > MOST_GRAMMAR:
            raise ApiError(400, f"response_format: the schema is longer than {MOST_GRAMMAR} characters",
                           param="response_format.json_schema.schema")  # fmt: skip
        return Constraint("json_schema", schema)
    if isinstance(wanted, Regex):
        return Constraint("regex", wanted.regex)
    return Constraint(wanted.syntax, wanted.grammar) if isinstance(wanted, ByGrammar) else None


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _message(message: Message, place: str) -> dict[str, Any]:
    """A message as chat templates read it."""
    role = "system" if message.role == "developer" else message.role  # OpenAI's new name for it
    out: dict[str, Any] = {"role": role, "content": _text(message.content or "")}
    if message.name is not None:
        out["name"] = message.name
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {
                "name": call.function.name,
                "arguments": _arguments(call.function.arguments, f"{place}.tool_calls[{i}].function.arguments"),
            }}
            for i, call in enumerate(message.tool_calls)
        ]  # fmt: skip
    return out


def _arguments(text: str, place: str) -> dict[str, Any]:
    """Templates write arguments as JSON themselves."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, f"{place} must be a JSON object, written as text", param=place)
    return value
