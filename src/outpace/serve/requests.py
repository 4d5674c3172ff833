"""The bodies of requests. A field that is not named here is refused, and so is a value that cannot be honoured.

Numbers are strict: "5" and 5.0 are no whole numbers. null stands for a field left out, as OpenAI's clients send it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MOST_N, MOST_PROMPTS, MOST_BIASES, MOST_TOP, MOST_GRAMMAR = 16, 32, 1024, 20, 1 << 16
MOST_STOPS, MOST_STOP_IDS = 64, 16
MOST_ID = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=MOST_ID)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
IdKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$")]
Biases = Annotated[dict[IdKey, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MOST_BIASES)]
Grammar = Annotated[str, StringConstraints(min_length=1, max_length=MOST_GRAMMAR)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Speculate(Body):
    """How to draft for this request; the answer does not depend on it under a lossless rule."""

    drafter: Name | None = Field(default=None, description="one of those the server was started with")
    gamma: Annotated[int, Field(ge=0, le=256)] | None = Field(default=None, description="most drafts a round")
    accept: Name | None = Field(default=None, description="acceptance rule")
    rule_options: dict[Name, bool | int | float | str] | None = Field(default=None, description="options of that rule")
    off: bool = Field(default=False, description="plain decoding")
    show: bool = Field(default=False, description="with stream: say of each token how it came")

    @model_validator(mode="after")
    def _one_wish(self) -> Speculate:
        if self.off and (self.gamma or self.drafter is not None):
            raise ValueError("off is plain decoding: gamma and drafter cannot be given with it")
        return self


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class Prediction(Body):
    """What the answer will probably be, or contain: it is drafted from."""

    type: Literal["content"]
    content: str | list[TextPart]


class Schema(Body):
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class PlainText(Body):
    type: Literal["text"]


class JsonObject(Body):
    type: Literal["json_object"]


class JsonSchema(Body):
    type: Literal["json_schema"]
    json_schema: Schema


class Regex(Body):
    """Ours: the whole answer matches a regular expression."""

    type: Literal["regex"]
    regex: Grammar


class ByGrammar(Body):
    """Ours: the whole answer is a sentence of a grammar, in Lark's notation or llama.cpp's."""

    type: Literal["grammar"]
    grammar: Grammar
    syntax: Literal["lark", "gbnf"] = "lark"


ResponseFormat = Annotated[PlainText | JsonObject | JsonSchema | Regex | ByGrammar, Field(discriminator="type")]


class Sampled(Body):
    """What both kinds of completion have in common."""

    model: Name | None = Field(default=None, description="the served name, or left out")
    max_tokens: Annotated[int, Field(ge=0, le=MOST_ID)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None, description="0 is greedy, 1 the default"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MOST_ID)] | None = Field(default=None, description="0 is off")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = Field(default=None, description="drawn when left out")
    n: Annotated[int, Field(ge=1, le=MOST_N)] | None = Field(default=None, description="samples to draw")
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = Field(default=None, description="1 is off")
    logit_bias: Biases | None = Field(default=None, description="token ids to what is added to their logits")
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    outpace: Speculate | None = None
    user: str | None = Field(default=None, description="accepted, and has no effect")

    @model_validator(mode="after")
    def _stream_options_stream(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream")
        return self

    @property
    def samples(self) -> int:
        return self.n or 1

    @property
    def speculation(self) -> Speculate:
        return self.outpace or Speculate()


class FunctionCall(Body):
    name: Name
    arguments: str


class ToolCall(Body):
    id: Name
    type: Literal["function"]
    function: FunctionCall


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Name | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Name | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _complete(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"content is missing from a message of role {self.role}")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of role assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id belongs to messages of role tool, and they need it")
        return self


class Function(Body):
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class ChatRequest(Sampled):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=0, le=MOST_ID)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    metadata: dict[str, str] | None = Field(default=None, description="accepted, and has no effect")
    store: bool | None = Field(default=None, description="accepted, and has no effect: nothing is ever stored")
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = Field(default=None, description="accepted, and has no effect")
    prompt_cache_key: str | None = Field(default=None, description="accepted, and has no effect")

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are one thing: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.tool_choice == "auto" and self.tools is None:
            raise ValueError("tool_choice needs tools")
        return self

    @property
    def most_tokens(self) -> int | None:
        """None: as many as the context holds."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def top(self) -> int | None:
        """Alternatives wanted with each token's log-probability; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Sampled):
    """``POST /v1/completions``."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_N)] | None = Field(default=None, description="must equal n")
    suffix: None = Field(default=None, description="filling in the middle is not offered")

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.samples:
            raise ValueError("best_of must equal n: answers are not ranked")
        if len(self.prompts) * self.samples > MOST_PROMPTS:
            raise ValueError(f"prompt and n ask for {len(self.prompts) * self.samples} answers; {MOST_PROMPTS} at most")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One or more prompts, in order."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt

    @property
    def most_tokens(self) -> int:
        return 16 if self.max_tokens is None else self.max_tokens  # OpenAI's default

    @property
    def top(self) -> int | None:
        return self.logprobs
