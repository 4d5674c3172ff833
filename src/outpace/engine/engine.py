"""Engine: prompts in, results and streams out, over one loop."""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..control.costs import pass_costs
from ..control.timing import CostModel, Watch
from ..core.errors import ContextError, ParameterError
from ..core.fork import ProcessLock
from ..core.prefix_cache import cache_users_of
from ..core.protocols import Controller, Drafter, Rule, Session
from ..core.types import Array, SamplingParams
from ..kernels.sampling import Sampler
from ..runtimes.loading import LoadedModel
from ..sampling.grammar import Compiled, Grammars
from ..sampling.logprobs import LogprobLog, token_logprobs
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import KeyedRandomSource
from ..text.chat import encode_chat, encode_prompt
from ..text.detokenizer import StreamDecoder
from .admission import Admission, fail
from .loop import Loop
from .stream import Answer, Result, Stream
from .text_state import TextState

Message = Mapping[str, object]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text as it stands, token ids, or chat messages ``{"role": ..., "content": ...}``."""


@dataclass(frozen=True)
class Prepared:
    """What can be worked out of a request before it is opened, by any thread. Made by :meth:`Engine.prepare`."""

    params: SamplingParams
    prediction: tuple[int, ...] = ()
    compiled: Compiled | None = None  # the constraint of ``params``


class Engine:
    """A target model with its drafters and acceptance rules. Made by :func:`outpace.load`.

    May be shared between threads. All open requests advance together, whoever steps the engine, and with the
    ``match`` rule every one gets what it would get alone. ``drafters`` and ``rules``: what a request may name;
    the first drafter and ``rule`` are the default. ``kv_bytes``: memory for keys and values in all (admission.py).
    With a ``controller``, requests that name no gamma draft as it decides, at most ``adaptive_gamma`` tokens a round.
    ``special_tokens_in_messages``: see :func:`outpace.text.chat.encode_chat`.
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
        self._sampler = sampler
        self.controller, self._adaptive_gamma = controller, adaptive_gamma
        self._watch = Watch()
        self._loop = Loop(
            target.runtime, drafters[self.drafter_name], rules[rule], self._commit,
            controller=controller or self._watch, prefix_bytes=prefix_bytes,
        )  # fmt: skip
        self._cache_users = {name: cache_users_of(drafter) for name, drafter in drafters.items()}
        every = [self._loop.share, *(share for cache_users in self._cache_users.values() for share in cache_users)]
        self._admission = Admission(self._loop, every, max_batch, kv_bytes, prefix_bytes)
        self._ids = itertools.count()
        self._lock = ProcessLock("the engine", lambda: self._admission.busy)
        self._held = 0

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Prepared | Sequence[SamplingParams | Prepared] | None = None,
        **request: Any,
    ) -> Result | list[Result]:
        """Answer one prompt, or each of a list of prompts (the answers keep their order).

        ``params``: one for all, or one for each prompt. ``request``: keywords of :meth:`open`, for all of them.
        Raises ParameterError, ContextError, TemplateError; and what ended the first request that failed.
        """
        single = _is_single(prompt)
        prompts: list[Prompt] = [prompt] if single else list(prompt)  # type: ignore[list-item, arg-type]
        if params is None or isinstance(params, (SamplingParams, Prepared)):
            every: list[SamplingParams | Prepared | None] = [params] * len(prompts)
        elif single:
            raise ParameterError(f"one prompt takes one SamplingParams, not {type(params).__name__}")
        else:
            every = list(params)
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

    def stream(self, prompt: Prompt, params: SamplingParams | Prepared | None = None, **request: Any) -> Stream:
        """Answer one prompt piece by piece: :meth:`open` by another name. The pieces' texts joined are the result's."""
        return self.open(prompt, params, **request)

    def open(
        self,
        prompt: Prompt,
        params: SamplingParams | Prepared | None = None,
        *,
        gamma: int | None = None,
        drafter: str | None = None,
        accept: str | None = None,
        prediction: str | Sequence[int] | None = None,
        tenant: str = "",
        sample: int = 0,
    ) -> Stream:
        """Queue a request; rounds are made by whoever steps the engine or iterates a stream.

        ``params`` may be what :meth:`prepare` made of them and of the ``prediction``. ``gamma``: drafted tokens a round
        for this request, 0 for plain decoding; the engine's own choice when None.
        ``drafter``, ``accept``: names among those loaded. ``prediction``: the answer that the caller expects, a draft
        like any other. ``tenant``: requests of different tenants share no cache and no drafts. ``sample``: numbers
        answers to one prompt that shall differ though the seed is the same.
        Raises ParameterError, ContextError, TemplateError.
        """
        return self._submit(self._session(prompt, params, gamma, drafter, accept, prediction, tenant, sample))

    def _submit(self, answer: Answer) -> Stream:
        if answer.session.finish is None:
            self._admission.waiting.append(answer)
        else:
            answer.ended = True
        return Stream(self, answer)

    def prepare(self, params: SamplingParams | None = None, prediction: str | Sequence[int] | None = None) -> Prepared:
        """Check ``params`` and ``prediction`` and compile the constraint, in the caller's thread: :meth:`open` takes
        what comes of it, as often as wanted, and need not do so again. Raises ParameterError."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be a SamplingParams, not {type(params).__name__}")
        if isinstance(prediction, str):
            prediction = self.target.tokenizer.encode(prediction, add_special=False)
        guess = tuple(_tokens(prediction or (), self.target.runtime.vocab_size, "prediction"))
        compiled = None if params.constraint is None else self._grammars.compiled(params.constraint)
        return Prepared(params, guess, compiled)

    def step(self) -> bool:
        """One round for all open requests. False when there is nothing to do."""
        with self._lock:
            self._reap()
            try:
                self._admission.prepare_round()
                self._admission.join()
            finally:
                self._reap()
            if not self._admission.running:
                return False
            try:
                self._loop.round([answer.session for answer in self._admission.running.values()])
            except BaseException as error:  # nobody knows how far the round came: all that took part in it end
                for answer in list(self._admission.running.values()):
                    fail(answer, error)
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
        return len(self._admission.running), len(self._admission.waiting)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values held after the last round, those kept for later requests included."""
        return self._held

    def _reap(self) -> None:
        """Free what requests hold that have ended or been cancelled."""
        with self._lock:
            for answer in self._admission.withdrawn():
                answer.ended = True
            for answer in [a for a in self._admission.running.values() if a.cancelled or a.session.finish is not None]:
                try:
                    self._admission.release(answer)
                finally:
                    answer.ended = True
            self._held = self._admission.held

    def encode(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None = None, most: int | None = None
    ) -> list[int]:
        """The token ids that a prompt becomes. ``tools``: functions that a chat template may offer to the model.
        Raises ParameterError when there are none, TemplateError when the template refuses, ContextError when there
        would be more than ``most``, which of a long prompt is found early."""
        tokenizer = self.target.tokenizer
        _check_kind(prompt)
        if isinstance(prompt, str):
            ids = encode_prompt(tokenizer, prompt, most)
        elif prompt and isinstance(prompt[0], Mapping):
            messages: list[Message] = list(prompt)  # type: ignore[arg-type]
            ids = encode_chat(
                tokenizer, self.target.chat_template, messages, tools=tools, most=most,
                special_tokens_in_messages=self._special_tokens_in_messages,
            )  # fmt: skip
        else:
            _fits(len(prompt), most)
            ids = _tokens(prompt, tokenizer.size, "prompt")  # type: ignore[arg-type]
        if not ids:
            without = ", and this model's tokenizer has no token to begin with" if isinstance(prompt, str) else ""
            raise ParameterError(f"the prompt is empty{without}")
        _fits(len(ids), most)
        return ids

    def _session(
        self,
        prompt: Prompt,
        params: SamplingParams | Prepared | None,
        gamma: int | None = None,
        drafter: str | None = None,
        accept: str | None = None,
        prediction: str | Sequence[int] | None = None,
        tenant: str = "",
        sample: int = 0,
    ) -> Answer:
        self._lock.check()
        if not isinstance(params, Prepared):
            params = self.prepare(params, prediction)
        elif prediction is not None:
            raise ParameterError("prediction was prepared already: give it to prepare(), not to open()")
        prepared, params = params, params.params
        for name, number in (("gamma", gamma), ("sample", sample)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
                raise ParameterError(f"{name} must be a whole number of at least 0, not {number!r}")
        name, rule = drafter or self.drafter_name, accept or self.rule_name
        _known("drafter", name, self._drafters)
        _known("accept", rule, self._rules)
        context = self.target.runtime.context
        ids = self.encode(prompt, most=context)
        limit = context if params.max_tokens is None else min(context, len(ids) + params.max_tokens)
        adaptive = self.controller is not None and gamma is None
        most = self._adaptive_gamma if adaptive else self._gammas[name]
        seed = secrets.randbits(64) if params.seed is None else params.seed
        tokenizer = self.target.tokenizer
        make_pipeline = functools.partial(
            Pipeline,
            params,
            len(ids),
            vocab_size=self.target.runtime.vocab_size,
            sampler=self._sampler,
        )
        session = Session(
            id=next(self._ids),
            tokens=ids,
            prompt_length=len(ids),
            params=params,
            pipeline=make_pipeline(grammars=prepared.compiled and prepared.compiled.drafts),
            target_pipeline=make_pipeline(grammars=prepared.compiled),
            rng=KeyedRandomSource(seed, sample, self._sampler),
            limit=limit,
            gamma=most if gamma is None else gamma,
            rule=self._rules[rule],
            drafters=self._drafters if adaptive and drafter is None else {name: self._drafters[name]},
            drafter_name=name,
            adaptive=adaptive,
            prediction=prepared.prediction,
            tenant=tenant,
        )
        report = session.report
        report.drafter, report.rule = name if session.gamma else "none", rule
        report.gamma, report.seed, report.prompt_tokens = session.gamma, seed, len(ids)
        report.pass_seconds = self.cost_model.pass_seconds() if self.cost_model else None
        if not session.rule.LOSSLESS:
            report.warnings.append(
                f"acceptance by {rule!r} is lossy: the answer need not follow the target's distribution"
            )
        if len(ids) >= limit:
            session.finish = "length"
        text = TextState(StreamDecoder(tokenizer, ids), params.stop, tokenizer.specials if params.stop else None)
        own_ends = frozenset() if params.ignore_eos else self.target.end_tokens
        logprobs = None if params.logprobs is None else LogprobLog()
        drafting = session.drafters if session.gamma else ()
        cache_users = [self._loop.share, *(share for name in drafting for share in self._cache_users[name])]
        # Where rows depend on those beside them, a text that is read again may go on otherwise: all is kept for it.
        reach = session.gamma + 1 if self.target.runtime.capabilities().row_invariant else limit
        answer = Answer(session, text, own_ends | frozenset(params.stop_token_ids), logprobs, cache_users, reach)
        self._admission.check(answer.need(limit), limit)
        return answer

    def _commit(self, session: Session, tokens: Sequence[int], rows: Sequence[Array]) -> int:
        """The one place where an answer ends: end tokens, stop strings, the limit of length."""
        answer = self._admission.running[session.id]
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
        return Result(
            text.text,
            session.generated[: text.tokens],
            session.finish or "cancelled",
            session.prompt_length,
            report,
            session.origins[: text.tokens],
            None if answer.logprobs is None else answer.logprobs.between(0, text.tokens),
        )

    @property
    def cost_model(self) -> CostModel | None:
        """What rounds cost, corrected by every one: the controller's, or what :meth:`measure_costs` found."""
        return self._watch.cost_model or getattr(self.controller, "cost_model", None)

    def measure_costs(self, beside: Engine | None = None) -> None:
        """See to it that the engine knows what passes cost, so that reports can say what plain decoding would have
        taken. An engine that has a controller knows already; another one measures for some seconds, or reads what an
        earlier process measured. ``beside``: an engine of the same target that knows; both learn on together."""
        with self._lock:
            if beside is not None:
                self._watch.cost_model = beside.cost_model
            elif self.cost_model is None:
                self._watch.cost_model = CostModel(pass_costs(self.target), {})


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


def _fits(tokens: int, most: int | None) -> None:
    if most is not None and tokens > most:
        raise ContextError(f"the prompt has {tokens} tokens, but the model's context ends at {most}")


def _tokens(tokens: Sequence[int], size: int, where: str) -> list[int]:
    """A list of them. Raises ParameterError for the first that is no id of the vocabulary."""
    whole = list(tokens)
    if set(map(type, whole)) == {int} and min(whole) >= 0 and max(whole) < size:  # no step of Python for each
        return whole
    for token in whole:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            raise ParameterError(f"{where} token {token!r} is not an id of the vocabulary of {size}")
    return whole
