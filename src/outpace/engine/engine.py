"""Engine: prompts in, results and streams out, over one loop."""

from __future__ import annotations

import itertools
import secrets
import statistics
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core.errors import ContextError, ParameterError
from ..core.protocols import Controller, Drafter, Rule, Session
from ..core.types import Chunk, SamplingParams
from ..kernels.sampling import Sampler
from ..models.chat import encode_chat, encode_prompt
from ..models.detokenizer import StreamDecoder
from ..models.loading import LoadedModel
from ..sampling.coins import KeyedCoins
from ..sampling.grammar import Grammars
from ..sampling.logprobs import TokenLogprobs, token_logprobs
from ..sampling.pipeline import Pipeline
from .costs import time_pass
from .loop import Loop
from .stream import Answer, Result, Stream
from .text import TextState

Message = Mapping[str, object]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text as it stands, token ids, or chat messages ``{"role": ..., "content": ...}``."""


class Engine:
    """A target model with its drafters and acceptance rules. Made by :func:`outpace.load`.

    May be shared between threads. All open requests advance together, whoever steps the engine, and with the
    ``match`` rule every one gets what it would get alone. ``drafters`` and ``rules``: what a request may name;
    the first drafter and ``rule`` are the default. ``kv_bytes``: memory for keys and values; a request waits
    until there is room. With a ``controller``, requests that name no gamma draft as it decides, at most
    ``adaptive_gamma`` tokens a round. ``special_tokens_in_messages``: see :func:`outpace.models.chat.encode_chat`.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafters: Mapping[str, Drafter],
        rules: Mapping[str, Rule],
        *,
        rule: str,
        gammas: Mapping[str, int],
        max_batch: int,
        sampler: Sampler | None = None,
        controller: Controller | None = None,
        adaptive_gamma: int = 16,
        prefix_bytes: int = 0,
        kv_bytes: int | None = None,
        special_tokens_in_messages: bool = False,
    ) -> None:
        self.target = target
        self._special_tokens_in_messages = special_tokens_in_messages
        self._grammars = Grammars(target.tokenizer, target.end_tokens)
        self.drafter_name, self.rule_name = next(iter(drafters)), rule
        self.gamma = gammas[self.drafter_name]
        self._drafters, self._rules, self._gammas = dict(drafters), dict(rules), dict(gammas)
        self._max_batch, self._sampler, self._kv_bytes = max_batch, sampler, kv_bytes
        self.controller, self._adaptive_gamma = controller, adaptive_gamma
        self._loop = Loop(
            target.runtime, drafters[self.drafter_name], rules[rule], self._commit,
            controller=controller, prefix_bytes=prefix_bytes,
        )  # fmt: skip
        self._waiting: deque[Answer] = deque()
        self._running: dict[int, Answer] = {}
        self._ids = itertools.count()
        self._lock = threading.RLock()
        self._row_seconds: dict[int, float] = {}
        self._held = 0

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **request: Any,
    ) -> Result | list[Result]:
        """Answer one prompt, or each of a list of prompts (the answers keep their order).

        ``params``: one for all, or one for each prompt. ``request``: keywords of :meth:`open`, for all of them.
        Raises ParameterError, ContextError, TemplateError; and what ended the first request that failed.
        """
        single = _is_single(prompt)
        if single and params is not None and not isinstance(params, SamplingParams):
            raise ParameterError(f"one prompt takes one SamplingParams, not {type(params).__name__}")
        prompts: list[Prompt] = [prompt] if single else list(prompt)  # type: ignore[list-item, arg-type]
        every = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(every) != len(prompts):
            raise ParameterError(f"{len(every)} SamplingParams were given for {len(prompts)} prompts")
        answers = [self._session(p, q, **request) for p, q in zip(prompts, every, strict=True)]
        streams = [self._submit(answer) for answer in answers]
        try:
            for stream in streams:
                for _ in stream:
                    pass
        finally:
            for stream in streams:
                stream.cancel()
            self._reap()
        results = [stream.result for stream in streams]
        return results[0] if single else results  # type: ignore[return-value]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **request: Any) -> Stream:
        """Answer one prompt piece by piece: :meth:`open` by another name. The pieces' texts joined are the result's."""
        return self.open(prompt, params, **request)

    def open(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        gamma: int | None = None,
        drafter: str | None = None,
        accept: str | None = None,
        prediction: str | Sequence[int] | None = None,
        tenant: str = "",
        sample: int = 0,
    ) -> Stream:
        """Queue a request; rounds are made by whoever steps the engine or iterates a stream.

        ``gamma``: drafted tokens a round for this request, 0 for plain decoding; the engine's own choice when None.
        ``drafter``, ``accept``: names among those loaded. ``prediction``: the answer that the caller expects, a draft
        like any other. ``tenant``: requests of different tenants share no cache and no drafts. ``sample``: numbers
        answers to one prompt that shall differ though the seed is the same.
        Raises ParameterError, ContextError, TemplateError.
        """
        return self._submit(self._session(prompt, params, gamma, drafter, accept, prediction, tenant, sample))

    def _submit(self, answer: Answer) -> Stream:
        if answer.session.finish is None:
            self._waiting.append(answer)
        else:
            answer.ended = True
        return Stream(self, answer)

    def prepare(self, params: SamplingParams) -> None:
        """Compile the constraint of ``params`` in the caller's thread, so that :meth:`open` finds it ready.
        Raises ParameterError."""
        if params.constraint is not None:
            self._grammars.grammar(params.constraint)

    def step(self) -> bool:
        """One round for all open requests. False when there is nothing to do."""
        with self._lock:
            self._reap()
            self._join()
            if not self._running:
                return False
            try:
                self._loop.round([answer.session for answer in self._running.values()])
            except BaseException as error:  # nobody knows how far the round came: all that took part in it end
                for answer in list(self._running.values()):
                    answer.session.finish = "error"
                    answer.session.error = error if isinstance(error, Exception) else InterruptedError("interrupted")
                self._reap()
                raise
            self._reap()
            return True

    @property
    def drafters(self) -> list[str]:
        """Names that a request may give as ``drafter``."""
        return list(self._drafters)

    @property
    def rules(self) -> list[str]:
        """Names that a request may give as ``accept``."""
        return list(self._rules)

    @property
    def open_requests(self) -> tuple[int, int]:
        """Requests that are running, and that are waiting to."""
        return len(self._running), len(self._waiting)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values held after the last round, those kept for later requests included."""
        return self._held

    def _join(self) -> None:
        """Admit waiting requests, first come, first served, as far as there is room."""
        cache, prefixes = self._loop.cache, self._loop.prefixes
        while self._waiting and len(self._running) < self._max_batch:
            answer = self._waiting[0]
            if self._kv_bytes is not None:
                free = self._kv_bytes - (cache.nbytes - prefixes.nbytes) - cache.bytes_for(answer.session.limit)
                if free < 0:
                    break
                prefixes.shrink(free)
            self._running[answer.session.id] = self._waiting.popleft()
            self._loop.admit([answer.session])

    def _reap(self) -> None:
        """Free what requests hold that have ended or been cancelled."""
        with self._lock:
            for answer in [answer for answer in list(self._waiting) if answer.cancelled]:  # others may be joining
                self._waiting.remove(answer)
                answer.ended = True
            for answer in [a for a in self._running.values() if a.cancelled or a.session.finish is not None]:
                del self._running[answer.session.id]
                self._loop.release(answer.session)
                answer.ended = True
            self._held = self._loop.cache.nbytes

    def encode(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """The token ids that a prompt becomes. ``tools``: functions that a chat template may offer to the model.
        Raises ParameterError when there are none, TemplateError when the template refuses."""
        tokenizer = self.target.tokenizer
        _check_kind(prompt)
        if isinstance(prompt, str):
            ids = encode_prompt(tokenizer, prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            messages: list[Message] = list(prompt)  # type: ignore[arg-type]
            ids = encode_chat(
                tokenizer, self.target.chat_template, messages, tools=tools,
                special_tokens_in_messages=self._special_tokens_in_messages,
            )  # fmt: skip
        else:
            ids = [_token(token, tokenizer.size) for token in prompt]
        if not ids:
            without = ", and this model's tokenizer has no token to begin with" if isinstance(prompt, str) else ""
            raise ParameterError(f"the prompt is empty{without}")
        return ids

    def _session(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        gamma: int | None = None,
        drafter: str | None = None,
        accept: str | None = None,
        prediction: str | Sequence[int] | None = None,
        tenant: str = "",
        sample: int = 0,
    ) -> Answer:
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be a SamplingParams, not {type(params).__name__}")
        for name, number in (("gamma", gamma), ("sample", sample)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
                raise ParameterError(f"{name} must be a whole number of at least 0, not {number!r}")
        name, rule = drafter or self.drafter_name, accept or self.rule_name
        _known("drafter", name, self._drafters)
        _known("accept", rule, self._rules)
        ids = self.encode(prompt)
        context = self.target.runtime.context
        if len(ids) > context:
            raise ContextError(f"the prompt has {len(ids)} tokens, but the model's context ends at {context}")
        limit = context if params.max_tokens is None else min(context, len(ids) + params.max_tokens)
        need = self._loop.cache.bytes_for(limit)
        if self._kv_bytes is not None and need > self._kv_bytes:
            raise ContextError(
                f"{limit} tokens need {need >> 20} MiB of keys and values, and {self._kv_bytes >> 20} MiB are allowed: "
                "ask for fewer tokens, or allow more memory"
            )
        adaptive = self.controller is not None and gamma is None
        most = self._adaptive_gamma if adaptive else self._gammas[name]
        seed = secrets.randbits(64) if params.seed is None else params.seed
        tokenizer = self.target.tokenizer
        if isinstance(prediction, str):
            prediction = tokenizer.encode(prediction, add_special=False)
        prediction = [_token(token, self.target.runtime.vocab_size, "prediction") for token in prediction or ()]
        session = Session(
            id=next(self._ids),
            tokens=ids,
            prompt_length=len(ids),
            params=params,
            pipeline=Pipeline(
                params,
                len(ids),
                vocab_size=self.target.runtime.vocab_size,
                grammars=self._grammars,
                sampler=self._sampler,
            ),
            coins=KeyedCoins(seed, sample, self._sampler),
            limit=limit,
            gamma=most if gamma is None else gamma,
            rule=self._rules[rule],
            drafters=self._drafters if adaptive and drafter is None else {name: self._drafters[name]},
            drafter_name=name,
            adaptive=adaptive,
            prediction=prediction,
            tenant=tenant,
        )
        report = session.report
        report.drafter, report.rule = name if session.gamma else "none", rule
        report.gamma, report.seed, report.prompt_tokens = session.gamma, seed, len(ids)
        if not session.rule.LOSSLESS:
            report.warnings.append(f"acceptance by {rule!r} is lossy: the answer need not follow the target's law")
        if len(ids) >= limit:
            session.finish = "length"
        text = TextState(StreamDecoder(tokenizer, ids), params.stop, tokenizer.specials if params.stop else None)
        own_ends = frozenset() if params.ignore_eos else self.target.end_tokens
        logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        return Answer(session, text, own_ends | frozenset(params.stop_token_ids), logprobs)

    def _commit(self, session: Session, tokens: Sequence[int], rows: Sequence[Tensor]) -> int:
        """The one place where an answer ends: end tokens, stop strings, the limit of length."""
        answer = self._running[session.id]
        for taken, (token, row) in enumerate(zip(tokens, rows, strict=True), start=1):
            session.tokens.append(token)
            stopped = answer.text.push(token)
            if answer.logprobs is not None:
                answer.logprobs.append(token_logprobs(row, token, session.params.logprobs or 0))
            if stopped or token in answer.ends:
                session.finish = "stop"
            elif len(session.tokens) >= session.limit:
                session.finish = "length"
            if session.finish is not None:
                return taken
        return len(tokens)

    def _finish(self, answer: Answer) -> Result:
        """The result of a request that holds nothing any more."""
        session, text = answer.session, answer.text
        text.finish()
        report = session.report
        report.emitted = text.tokens
        # Drafts that stood, behind the cut of a stop string.
        unseen = sum(origin not in ("correction", "bonus", "plain") for origin in session.origins[text.tokens :])
        report.accepted -= unseen
        report.tested -= unseen
        report.pass_seconds = self.pass_seconds
        return Result(
            text.text,
            session.generated[: text.tokens],
            session.finish or "cancelled",
            session.prompt_length,
            report,
            session.origins[: text.tokens],
            None if answer.logprobs is None else answer.logprobs[: text.tokens],
        )

    def pass_seconds(self, rows: int, cached: int = 128, repeats: int = 3) -> float:
        """Seconds of a target pass over ``rows`` rows behind ``cached`` entries: the median of some
        passes, measured once for each number of rows and remembered."""
        with self._lock:
            if rows not in self._row_seconds:
                runtime, cache = self.target.runtime, self._loop.cache
                cached = max(0, min(cached, runtime.context - rows))
                slot = cache.open(cached + rows)
                try:
                    if cached:
                        runtime.forward([Chunk(slot, [0] * cached, logits_from=cached)], cache)
                    times = [time_pass(runtime, cache, slot, rows) for _ in range(repeats)]
                finally:
                    cache.close(slot)
                self._row_seconds[rows] = statistics.median(times)
            return self._row_seconds[rows]


def _is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    _check_kind(prompt)
    # An empty list is an empty batch: there is nothing to say which other kind it was meant to be.
    return isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], (int, Mapping)))


def _known(what: str, name: object, known: Mapping[str, object]) -> None:
    if name not in known:
        raise ParameterError(f"{what} must be one of {', '.join(known)}, which were loaded, not {name!r}")


def _check_kind(prompt: object) -> None:
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        kind = type(prompt).__name__
        raise ParameterError(f"a prompt is text, token ids, chat messages or a list of these, not {kind}")


def _token(token: object, size: int, where: str = "prompt") -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
        raise ParameterError(f"{where} token {token!r} is not an id of the vocabulary of {size}")
    return token
