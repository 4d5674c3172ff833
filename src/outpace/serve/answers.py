"""From the engine's events to the bodies of answers: choices, log-probabilities, usage, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from ..core.report import Report
from ..engine.stream import Result
from .bodies import (
    AnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
    Finish,
    Shown,
    Speculation,
    TextChoice,
    TextLogprobs,
    Usage,
)
from .plan import AnswerPlan
from .tools import CallReader
from .worker import Update, live_of

Scored = tuple[int, float | None, Sequence[tuple[int, float]]]
"""A token, its log-probability, the most probable tokens of its place with theirs."""

LEAST = -9999.0  # what JSON, which has no infinity, says of an impossible token


class Offsets(Protocol):
    """See :class:`outpace.text.detokenizer.TextOffsets`."""

    def add(self, ids: Sequence[int], final: bool) -> list[int]: ...


class Speller(Protocol):
    """What answers need of a tokenizer."""

    def token(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def offsets(self, context_ids: Sequence[int] = (), length: int = 0) -> Offsets: ...


def chat_logprobs(scored: Sequence[Scored], speller: Speller) -> ChatLogprobs:
    """Of every token: what it spells, the target's log-probability, and its rivals. The bytes of a special token, which
    the text leaves out, are none."""

    def entry(token: int) -> tuple[str, list[int]]:
        spelt = speller.token_bytes(token)
        return spelt.decode("utf-8", "replace") if spelt else speller.token(token), list(spelt)

    def rival(token: int, logprob: float) -> dict[str, object]:
        text, spelt = entry(token)
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": spelt}

    content = [
        {**rival(token, cast(float, logprob)), "top_logprobs": [rival(*pair) for pair in top]}
        for token, logprob, top in scored
    ]
    return {"content": content, "refusal": None}  # type: ignore[typeddict-item]


def text_logprobs(scored: Sequence[Scored], offsets: list[int], with_top: bool, speller: Speller) -> TextLogprobs:
    """The older shape of log-probabilities. ``offsets``: where the tokens begin in the choice's text."""

    def name(token: int) -> str:
        """The token's text; for a part of a character its bytes, as OpenAI writes them."""
        spelt = speller.token_bytes(token)
        try:
            return spelt.decode("utf-8") or speller.token(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)

    tops = [
        None  # the token itself is always among them
        if logprob is None
        else {name(other): max(value, LEAST) for other, value in [*top, (token, logprob)]}
        for token, logprob, top in scored
    ]
    return {
        "tokens": [name(token) for token, _, _ in scored],
        "token_logprobs": [None if logprob is None else max(logprob, LEAST) for _, logprob, _ in scored],
        "top_logprobs": tops if with_top else None,
        "text_offset": offsets,
    }


@dataclass
class Answers:
    """The results of a request as they come in, and what they sum up to."""

    plan: AnswerPlan
    plain_tokens_per_second: float | None
    timeout: float
    cut: bool = False  # time ran out before some answer's own end
    results: dict[int, Result] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.plan.answers)

    @property
    def origins(self) -> Counter[str]:
        """Where the tokens came from."""
        return Counter(origin for result in self.results.values() for origin in result.origins)

    def usage(self) -> Usage:
        firsts = [i for i, wanted in enumerate(self.plan.answers) if wanted.first_of_prompt]
        prompt = sum(len(self.plan.answers[i].prompt) for i in firsts)
        completion = sum(len(result.token_ids) for result in self.results.values())
        accepted = self.origins["prediction"]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": max(0, self.plan.predicted * len(self.plan.answers) - accepted),
            },
            "prompt_tokens_details": {"cached_tokens": sum(self.results[i].report.prompt_cached for i in firsts)},
        }

    def speculation(self) -> Speculation:
        total = Report.total([self.results[i].report for i in sorted(self.results)])
        warnings = total.warnings
        if self.cut:
            warnings.append(f"time ran out: this server gives an answer {self.timeout:g} seconds")
        ended_by: dict[str, object] = {"ended_by": "timeout"} if self.cut else {}
        return {
            **live_of(total, self.plain_tokens_per_second),
            "drafter": total.drafter,
            "accept": total.rule,
            "gamma": total.gamma,
            "seed": total.seed,
            "target_passes": total.target_passes,
            "drafted": total.drafted,
            "tested": total.tested,
            "accepted": total.accepted,
            "seconds_prefill": total.seconds_prefill + total.seconds_draft_prefill,
            "seconds_decode": total.seconds_decode,
            "origins": dict(self.origins),
            "warnings": warnings,
            **ended_by,  # type: ignore[typeddict-item]
        }


def shown(update: Update, speller: Speller) -> Shown | None:
    """How the tokens of an update came; None where that was not asked for, or there are none."""
    event = update.event
    if update.live is None or not event.token_ids:
        return None
    scores = [None] * len(event.token_ids) if event.logprobs is None else [one.logprob for one in event.logprobs]
    return {
        "tokens": [
            {"text": speller.token_bytes(token).decode("utf-8", "replace"), "origin": origin, "logprob": score}
            for token, origin, score in zip(event.token_ids, event.origins, scores, strict=True)
        ],
        "live": update.live,
    }


class ChatFormat:
    """Choices of a chat completion. One instance a request."""

    name, chunk_name, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, speller: Speller, count: int, tools: bool) -> None:
        self._speller = speller
        self._readers = [CallReader() if tools else None for _ in range(count)]
        self._begun: set[int] = set()

    def opening(self) -> list[ChatChunkChoice]:
        return []

    def piece(self, update: Update) -> ChatChunkChoice:
        """A streamed chunk's choice."""
        index, event, reader = update.index, update.event, self._readers[update.index]
        delta: Delta = {} if index in self._begun else {"role": "assistant"}
        text = event.text
        if reader is not None:
            before = reader.calls
            text, calls = reader.push(event.text, event.finish_reason is not None)
            if calls:
                delta["tool_calls"] = [{**call, "index": before + i} for i, call in enumerate(calls)]
        if text or index not in self._begun:
            delta["content"] = text
        self._begun.add(index)
        choice: ChatChunkChoice = {
            "index": index,
            "delta": delta,
            "logprobs": None if event.logprobs is None else chat_logprobs(event.logprobs, self._speller),
            "finish_reason": _finish(event.finish_reason, reader),
        }
        how = shown(update, self._speller)
        if how is not None:
            choice["outpace"] = how
        return choice

    def whole(self, index: int, result: Result) -> ChatChoice:
        """A choice that is not streamed."""
        reader = self._readers[index]
        message: AnswerMessage = {"role": "assistant", "content": result.text, "refusal": None}
        if reader is not None:
            text, calls = reader.push(result.text, final=True)
            message["content"] = text if text or not calls else None
            if calls:
                message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": None if result.logprobs is None else chat_logprobs(result.logprobs, self._speller),
            "finish_reason": cast(Finish, _finish(result.finish_reason, reader)),
        }


class TextFormat:
    """Choices of a text completion. One instance a request. ``prompts``: by choice. ``echoes``: by choice, the prompt's
    text and, with log-probabilities, its scores."""

    name = chunk_name = "text_completion"
    prefix = "cmpl-"

    def __init__(
        self,
        speller: Speller,
        prompts: Sequence[Sequence[int]],
        top: int | None,
        echoes: Sequence[tuple[str, list[Scored]]],
    ) -> None:
        self._speller, self._echoes, self._top = speller, echoes, bool(top)
        lengths = [len(text) for text, _ in echoes] or [0] * len(prompts)
        self._offsets = [speller.offsets(*pair) for pair in zip(prompts, lengths, strict=True)]

    def opening(self) -> list[TextChoice]:
        """The prompts' own chunks, where they are echoed."""
        return [
            {"index": i, "text": text, "logprobs": self._scores(i, scored, [], False) if scored else None,
             "finish_reason": None}
            for i, (text, scored) in enumerate(self._echoes)
        ]  # fmt: skip

    def _scores(self, index: int, echoed: Sequence[Scored], answered: Sequence[Scored], final: bool) -> TextLogprobs:
        """Of tokens of the prompt, and of those of the answer that come next."""
        offsets = self._speller.offsets().add([token for token, _, _ in echoed], True)
        offsets += self._offsets[index].add([token for token, _, _ in answered], final)
        return text_logprobs([*echoed, *answered], offsets, self._top, self._speller)

    def piece(self, update: Update) -> TextChoice:
        event = update.event
        choice: TextChoice = {
            "index": update.index,
            "text": event.text,
            "logprobs": None
            if event.logprobs is None
            else self._scores(update.index, [], event.logprobs, event.finish_reason is not None),
            "finish_reason": _finish(event.finish_reason, None),
        }
        how = shown(update, self._speller)
        if how is not None:
            choice["outpace"] = how
        return choice

    def whole(self, index: int, result: Result) -> TextChoice:
        text, scored = self._echoes[index] if self._echoes else ("", [])
        return {
            "index": index,
            "text": text + result.text,
            "logprobs": None if result.logprobs is None else self._scores(index, scored, result.logprobs, True),
            "finish_reason": _finish(result.finish_reason, None),
        }


def _finish(reason: str | None, reader: CallReader | None) -> Finish | None:
    called = reason == "stop" and reader is not None and reader.calls > 0
    return "tool_calls" if called else cast("Finish | None", reason)
