"""The bodies of answers, as types: checked by mypy where they are built, and described to clients by OpenAPI."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, with_config
from typing_extensions import NotRequired, TypedDict

_closed = with_config(ConfigDict(extra="forbid"))

Finish = Literal["stop", "length", "tool_calls"]


@_closed
class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


@_closed
class Failure(TypedDict):
    """OpenAI's error shape."""

    error: ErrorDetail


@_closed
class CompletionDetails(TypedDict):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


@_closed
class PromptDetails(TypedDict):
    cached_tokens: int


@_closed
class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails
    prompt_tokens_details: PromptDetails


@_closed
class Live(TypedDict):
    """What drafting brings. ``alpha``: accepted / tested drafts; ``block_efficiency``: tokens a verification pass of
    the target; ``rows_per_pass``: rows such a pass had; ``tokens_per_second``: of decoding, the prompt apart;
    ``plain_tokens_per_second``: of plain decoding, alone, estimated from the rounds of the last minutes; null as long
    as nothing was drafted."""

    alpha: float | None
    block_efficiency: float | None
    rows_per_pass: float | None
    tokens_per_second: float | None
    plain_tokens_per_second: float | None


@_closed
class Speculation(Live):
    """What a request cost, summed over its answers. ``origins`` counts the emitted tokens by where they came from.
    Seconds are wall time shared out among the requests of a pass. ``ended_by``: there if time ran out before the end of
    some answer, whose finish reason is "length"."""

    drafter: str
    accept: str
    gamma: int
    seed: int
    target_passes: int
    drafted: int
    tested: int
    accepted: int
    seconds_prefill: float
    seconds_decode: float
    origins: dict[str, int]
    warnings: list[str]
    ended_by: NotRequired[Literal["timeout"]]


@_closed
class ShownToken(TypedDict):
    text: str
    origin: str
    logprob: float | None


@_closed
class Shown(TypedDict):
    """Of a chunk, with ``outpace: {"show": true}``."""

    tokens: list[ShownToken]
    live: Live


@_closed
class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


@_closed
class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


@_closed
class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


@_closed
class TextLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


@_closed
class CalledFunction(TypedDict):
    name: str
    arguments: str


@_closed
class Call(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction
    index: NotRequired[int]  # in streamed deltas


@_closed
class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[Call]]


@_closed
class ChatChoice(TypedDict):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


@_closed
class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    outpace: Speculation


@_closed
class Delta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[Call]]


@_closed
class ChatChunkChoice(TypedDict):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    outpace: NotRequired[Shown]


@_closed
class ChatChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    outpace: NotRequired[Speculation]


@_closed
class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None
    outpace: NotRequired[Shown]


@_closed
class TextCompletion(TypedDict):
    """Also a streamed chunk's shape; ``finish_reason`` is null there until a choice ends."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: NotRequired[Usage | None]
    outpace: NotRequired[Speculation]


@_closed
class ModelOptions(TypedDict):
    """What requests may ask for. ``plain_tokens_per_second``: of one request alone, measured at the
    load and corrected by the rounds since, the last of them at ``plain_measured_at`` (Unix time; null before one)."""

    context: int
    vocabulary: int
    drafters: list[str]
    gamma: int
    accept: list[str]
    chat: bool
    tools: bool
    plain_tokens_per_second: float | None
    plain_measured_at: int | None


@_closed
class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    outpace: ModelOptions


@_closed
class Models(TypedDict):
    object: Literal["list"]
    data: list[Model]


@_closed
class Health(TypedDict):
    status: Literal["ok"]
    running: int
    waiting: int
