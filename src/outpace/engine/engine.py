"""Engine: prompts in, results and streams out, over one scheduler."""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..control.cost_model import CostModel
from ..control.fixed import FixedController
from ..control.pass_costs import load_pass_costs
from ..core.errors import ParameterError
from ..core.prefix_cache import cache_users_of
from ..core.protocols import Controller, Drafter, Drafting, Request, Rule, Session
from ..core.types import SamplingParams
from ..kernels.sampling import Sampler
from ..runtimes.loading import LoadedModel
from ..sampling.grammar import Compiled, Grammars
from ..sampling.logprobs import LogprobLog, TokenLogprobs
from ..sampling.pipeline import Pipeline
from ..sampling.random_source import KeyedRandomSource
from ..text.detokenizer import StreamDecoder
from .open_request import OpenRequest
from .prompts import Prompt, checked_tokens, encode, is_single
from .scheduler import Scheduler
from .scoring import prompt_logprobs
from .stream import Result, Stream
from .text_state import TextState


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
    ``make_rule(name, options)``: a rule with options of a request's own;
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
        make_rule: Callable[[str, Mapping[str, object]], Rule],
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
        self._make_rule = make_rule
        self._sampler = sampler
        self.controller, self._adaptive_gamma = controller, adaptive_gamma
        self._fixed = FixedController()
        self._cache_users = {name: cache_users_of(drafter) for name, drafter in drafters.items()}
        self.scheduler = Scheduler(
            target.runtime,
            drafters[self.drafter_name],
            rules[rule],
            controller=controller or self._fixed,
            draft_caches=[user for users in self._cache_users.values() for user in users],
            max_batch=max_batch,
            kv_bytes=kv_bytes,
            prefix_bytes=prefix_bytes,
        )
        self._ids = itertools.count()

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Prepared | Sequence[SamplingParams | Prepared] | None = None,
        **request: Any,
    ) -> Result | list[Result]:
        """Answer one prompt, or each of a list of prompts (the answers keep their order).

        ``params``: one for all, or one for each prompt. ``request``: keywords of :meth:`stream`, for all of them.
        Raises ParameterError, ContextError, TemplateError; and what ended the first request that failed.
        """
        single = is_single(prompt)
        prompts: list[Prompt] = [prompt] if single else list(prompt)  # type: ignore[list-item, arg-type]
        if params is None or isinstance(params, (SamplingParams, Prepared)):
            every: list[SamplingParams | Prepared | None] = [params] * len(prompts)
        elif single:
            raise ParameterError(f"one prompt takes one SamplingParams, not {type(params).__name__}")
        else:
            every = list(params)
        if len(every) != len(prompts):
            raise ParameterError(f"{len(every)} SamplingParams were given for {len(prompts)} prompts")
        opened = [self._open(p, q, **request) for p, q in zip(prompts, every, strict=True)]
        streams = [self._submit(one) for one in opened]
        try:
            for stream in streams:
                for _ in stream:
                    pass
        finally:
            for stream in streams:
                stream.cancel()
            self.scheduler.free_ended()
        results = [stream.result for stream in streams]
        return results[0] if single else results  # type: ignore[return-value]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | Prepared | None = None,
        *,
        gamma: int | None = None,
        drafter: str | None = None,
        accept: str | None = None,
        rule_options: Mapping[str, object] | None = None,
        prediction: str | Sequence[int] | None = None,
        tenant: str = "",
        sample: int = 0,
    ) -> Stream:
        """Queue a request, to be answered piece by piece. The pieces' texts joined are the result's. Rounds are made by
        whoever steps the engine or iterates a stream.

        ``params`` may be what :meth:`prepare` made of them and of the ``prediction``. ``gamma``: drafted tokens a round
        for this request, 0 for plain decoding; the engine's own choice when None.
        ``drafter``, ``accept``: names among those loaded. ``rule_options``: of the rule, for this request alone.
        ``prediction``: the answer that the caller expects, a draft like any other. ``tenant``: requests of different
        tenants share no cache and no drafts. ``sample``: numbers answers to one prompt that shall differ though the
        seed is the same. Raises ParameterError, ContextError, TemplateError.
        """
        return self._submit(
            self._open(prompt, params, gamma, drafter, accept, rule_options, prediction, tenant, sample)
        )

    def _submit(self, opened: OpenRequest) -> Stream:
        self.scheduler.submit(opened)
        return Stream(self.scheduler, opened)

    def prepare(self, params: SamplingParams | None = None, prediction: str | Sequence[int] | None = None) -> Prepared:
        """Check ``params`` and ``prediction`` and compile the constraint, in the caller's thread: :meth:`stream` takes
        what comes of it, as often as wanted, and need not do so again. Raises ParameterError."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"params must be a SamplingParams, not {type(params).__name__}")
        if isinstance(prediction, str):
            prediction = self.target.tokenizer.encode(prediction, add_special=False)
        expected = tuple(checked_tokens(prediction or (), self.target.runtime.vocab_size, "prediction"))
        compiled = None if params.constraint is None else self._grammars.compiled(params.constraint)
        return Prepared(params, expected, compiled)

    def encode(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None = None, most: int | None = None
    ) -> list[int]:
        """The token ids that a prompt becomes. ``tools``: functions that a chat template may offer to the model.
        Raises ParameterError when there are none, TemplateError when the template refuses, ContextError when there
        would be more than ``most``, which of a long prompt is found early."""
        inside = self._special_tokens_in_messages
        return encode(self.target, prompt, tools=tools, most=most, special_tokens_in_messages=inside)

    def prompt_logprobs(
        self, ids: Sequence[int], top: int, *, rows: int = 32
    ) -> Generator[list[TokenLogprobs], None, None]:
        """Log-probabilities of ``ids[1:]``, each given those before it, with ``top`` alternatives; a pass over at most
        ``rows`` rows at a time, between which other requests may make rounds. Yields an empty list while it waits for
        memory: rounds must go on then. Raises ContextError, NumericsError, and what no slot could be had for."""
        return prompt_logprobs(self.scheduler, ids, top, rows=rows)

    def step(self) -> bool:
        """One round for all open requests. False when there is nothing to do."""
        return self.scheduler.step()

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
        return len(self.scheduler.admission.running), len(self.scheduler.admission.waiting)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values held after the last round, prefix caches included."""
        return self.scheduler.held

    @property
    def cost_model(self) -> CostModel | None:
        """What rounds cost, corrected by every one: the controller's, or what :meth:`measure_costs` found."""
        return self._fixed.cost_model or getattr(self.controller, "cost_model", None)

    def measure_costs(self, beside: Engine | None = None) -> None:
        """See to it that the engine knows what passes cost, so that reports can say what plain decoding would have
        taken. An engine that has a controller knows already; another one measures for some seconds, or reads what an
        earlier process measured. ``beside``: an engine of the same target that knows; both learn on together."""
        with self.scheduler.lock:
            if beside is not None:
                self._fixed.cost_model = beside.cost_model
            elif self.cost_model is None:
                self._fixed.cost_model = CostModel(load_pass_costs(self.target), {})

    def _open(
        self,
        prompt: Prompt,
        params: SamplingParams | Prepared | None,
        gamma: int | None = None,
        drafter: str | None = None,
        accept: str | None = None,
        rule_options: Mapping[str, object] | None = None,
        prediction: str | Sequence[int] | None = None,
        tenant: str = "",
        sample: int = 0,
    ) -> OpenRequest:
        self.scheduler.lock.check()
        if not isinstance(params, Prepared):
            params = self.prepare(params, prediction)
        elif prediction is not None:
            raise ParameterError("prediction was prepared already: give it to prepare(), not to stream()")
        prepared, params = params, params.params
        for name, number in (("gamma", gamma), ("sample", sample)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
                raise ParameterError(f"{name} must be a whole number of at least 0, not {number!r}")
        name, rule = drafter or self.drafter_name, accept or self.rule_name
        _check_loaded("drafter", name, self._drafters)
        _check_loaded("accept", rule, self._rules)
        acceptance = self._rules[rule] if rule_options is None else self._make_rule(rule, rule_options)
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
            request=Request(len(ids), limit, params, prepared.prediction, tenant),
            tokens=ids,
            pipeline=make_pipeline(grammars=prepared.compiled and prepared.compiled.drafts),
            target_pipeline=make_pipeline(grammars=prepared.compiled),
            rng=KeyedRandomSource(seed, sample, self._sampler),
            draft=Drafting(
                most if gamma is None else gamma,
                adaptive=adaptive,
                drafters=self._drafters if adaptive and drafter is None else {name: self._drafters[name]},
                drafter_name=name,
            ),
            rule=acceptance,
        )
        report = session.report
        report.drafter, report.rule = name if session.draft.gamma else "none", rule
        report.gamma, report.seed, report.prompt_tokens = session.draft.gamma, seed, len(ids)
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
        drafting = session.draft.drafters if session.draft.gamma else ()
        users = [self.scheduler.loop.cache_user, *(user for name in drafting for user in self._cache_users[name])]
        # Where rows depend on those beside them, a second prefill of a text may go on otherwise: all is kept for it.
        reach = session.draft.gamma + 1 if self.target.runtime.capabilities().row_invariant else limit
        opened = OpenRequest(session, text, own_ends | frozenset(params.stop_token_ids), logprobs, users, reach)
        self.scheduler.admission.check(opened.need(limit), limit)
        return opened


def _check_loaded(what: str, name: object, loaded: Mapping[str, object]) -> None:
    if name not in loaded:
        raise ParameterError(f"{what} must be one of {', '.join(loaded)}, which were loaded, not {name!r}")
