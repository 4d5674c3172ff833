"""The only place that joins the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import drafters, verify
from ..catalogue import resolve
from ..control.controller import AutoController
from ..control.pass_costs import load_pass_costs
from ..core.errors import ParameterError
from ..core.protocols import Parts, Requirements
from ..kernels.native import open_library
from ..kernels.sampling import Sampler
from ..runtimes.loading import LoadedModel, load_draft, load_model
from ..text.pairing import check_pair
from .engine import Engine

CONTROLLERS = ("auto", "fixed")


def load(
    target: str | Path | LoadedModel,
    draft: str | Path | LoadedModel | None = None,
    *,
    drafter: str | Sequence[str] | None = None,
    gamma: int | None = None,
    controller: str = "auto",
    prior: Mapping[str, float] | None = None,
    accept: str = "match",
    weights: str = "auto",
    draft_weights: str = "auto",
    draft_head: int | None = None,
    backend: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    max_batch: int = 8,
    prefix_bytes: int = 0,
    kv_bytes: int | None = None,
    special_tokens_in_messages: bool = False,
    options: drafters.Options | None = None,
    rule_options: Mapping[str, Mapping[str, object]] | None = None,
) -> Engine:
    """Load a target, and what drafts for it, into an engine.

    ``target``, ``draft``: a catalogue name, a GGUF file, a Hugging Face directory, or a loaded model.
    ``drafter``: a module of ``outpace.drafters``, or several (a list, or "a,b"): the first one drafts, the others for
    requests that name them; by default ``draft_model`` when a draft is given, and ``lookup`` otherwise or where the
    controller may choose it. ``gamma``: drafted tokens a round, the controller's choice if None. ``controller``: "auto"
    decides in each round how many tokens are drafted, and by which of the drafters, for requests that name no gamma
    (it needs a few seconds at the first load of a model, to measure its passes); "fixed" drafts ``gamma`` tokens in
    every round, or as many as the drafter has by default, and a ``gamma`` here means the same.
    ``prior``: the share of a drafter's guesses that the controller expects to stand, before it has seen any.
    ``accept``: a module of ``outpace.verify``. ``weights``, ``backend``, ``threads`` and ``context`` are the
    target's, see :func:`outpace.runtimes.loading.load_model`; ``draft_weights`` and ``draft_head`` the draft's, see
    :func:`outpace.runtimes.loading.load_draft`. ``max_batch``: sessions that share a pass. ``kv_bytes``: memory
    for keys and values in all: the target's and the drafts', of requests, scored texts and kept beginnings.
    A request takes what it has read and said, not what it may still say. Requests wait for room; where the running ones
    outgrow it, the one that came last waits again, and goes on later with the same tokens (where the runtime's rows
    depend on those beside them, each gets room for its whole length instead). One that could never fit is refused with
    ContextError. ``prefix_bytes``: of that, for keys and values of ended requests, which those that begin alike reuse.
    ``special_tokens_in_messages``: a special token that a chat message spells becomes that token; by default it stays
    text. ``options``: fields of drafters' Configs, by drafter; those of a
    hybrid's members under the members' own names. ``rule_options``: fields of rules' Configs, by rule.
    Raises ModelError, VocabularyError, CatalogueError, ParameterError.
    """
    if isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1:
        raise ParameterError(f"max_batch must be a whole number of at least 1, not {max_batch!r}")
    if controller not in CONTROLLERS:
        raise ParameterError(f"controller must be one of {', '.join(CONTROLLERS)}, not {controller!r}")
    rules = verify.rules(rule_options)
    if accept not in rules:
        verify.rule(accept)  # raises: there is none, or it is broken
    adaptive = controller == "auto" and gamma is None
    names = _names(drafter) if drafter is not None else default_drafters(draft is not None, adaptive)
    configs = drafters.configure(names, options or {}, gamma)
    required = drafters.requirements(configs)
    if draft is not None and not any(one.draft_model for one in required.values()):
        raise ParameterError(f"the drafter {names[0]!r} takes no draft model, but one was given")
    for name, one in required.items():
        if draft is None and one.draft_model:
            raise ParameterError(f"the drafter {name!r} needs a draft model, and none was given")
    if draft is None and (draft_weights != "auto" or draft_head is not None):
        raise ParameterError("draft_weights and draft_head are a draft model's, and none was given")
    model = target if isinstance(target, LoadedModel) else load_model(
        resolve(str(target)), weights=weights, backend=backend, threads=threads, context=context
    )  # fmt: skip
    drafting = None
    if draft is not None:
        drafting = draft if isinstance(draft, LoadedModel) else load_draft(
            resolve(str(draft)), weights=draft_weights, head=draft_head, backend=backend, threads=threads
        )  # fmt: skip
        if any(one.draft_model and one.same_vocabulary for one in required.values()):
            check_pair(model.tokenizer, drafting.tokenizer, model.name, drafting.name)
    parts = Parts(
        model.runtime.vocab_size,
        target=model.runtime,
        draft=drafting.runtime if drafting else None,
        target_model=model,
        draft_model=drafting,
        prefix_bytes=prefix_bytes,
    )
    library = open_library()
    return Engine(
        model,
        {name: drafters.module(name).create(config, parts) for name, config in configs.items()},
        rules,
        rule=accept,
        gammas={name: config.gamma for name, config in configs.items()},
        max_batch=max_batch,
        sampler=Sampler(library) if library else None,
        controller=_controller(required, model, drafting, prior) if adaptive and names != ["none"] else None,
        prefix_bytes=prefix_bytes,
        kv_bytes=kv_bytes,
        special_tokens_in_messages=special_tokens_in_messages,
    )


def _controller(
    required: Mapping[str, Requirements],
    model: LoadedModel,
    draft: LoadedModel | None,
    prior: Mapping[str, float] | None,
) -> AutoController:
    """A controller that knows what the models' passes cost."""
    draft_costs = load_pass_costs(draft) if draft is not None else None
    behind = {name: draft_costs for name, one in required.items() if one.draft_model and draft_costs is not None}
    return AutoController(load_pass_costs(model), behind, prior)


def default_drafters(has_draft: bool, adaptive: bool) -> list[str]:
    """Those that are loaded where none is named. ``adaptive``: a controller chooses among them."""
    if not has_draft:
        return ["lookup"]
    return ["draft_model", "lookup"] if adaptive else ["draft_model"]


def _names(drafter: str | Sequence[str]) -> list[str]:
    """Names of the drafters, the default one first."""
    names = [name.strip() for name in drafter.split(",")] if isinstance(drafter, str) else list(drafter)
    if not names or len(set(names)) < len(names):
        raise ParameterError(f"drafter must name one drafter or several different ones, not {drafter!r}")
    return names
