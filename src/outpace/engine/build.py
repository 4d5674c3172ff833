"""The only place that joins the parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import drafters, verify
from ..catalogue import resolve
from ..control.controller import AutoController
from ..control.pass_costs import load_pass_costs
from ..core.errors import ParameterError
from ..core.load_options import LoadOptions
from ..core.protocols import Parts, Requirements
from ..core.torch_extra import require_torch
from ..kernels.sampling import default_sampler
from ..runtimes.loading import LoadedModel, load_draft, load_model
from ..text.pairing import check_pair
from .engine import Engine


def load(
    target: str | Path | LoadedModel,
    draft: str | Path | LoadedModel | None = None,
    options: LoadOptions | None = None,
    **changes: Any,
) -> Engine:
    """Load a target, and what drafts for it, into an engine.

    ``target``, ``draft``: a catalogue name, a GGUF file, a Hugging Face directory, or a loaded model. ``options``: the
    settings, the defaults if None. ``changes``: fields of :class:`outpace.LoadOptions` that replace those of
    ``options``, so that ``load("tiny", gamma=3)`` does. Raises ModelError, VocabularyError, CatalogueError,
    ParameterError.
    """
    if options is not None and not isinstance(options, LoadOptions):
        raise ParameterError(f"options must be LoadOptions, not {options!r}; a drafter's own are drafter_options")
    chosen = (options or LoadOptions()).changed(changes)
    rules = verify.rules(chosen.rule_options)
    if chosen.accept not in rules:
        verify.rule(chosen.accept)  # raises: there is none, or it is broken
    names = chosen.drafters or default_drafters(draft is not None, chosen.adaptive)
    configs = drafters.configure(names, chosen.drafter_options, chosen.gamma)
    required = drafters.requirements(configs)
    if draft is not None and not any(one.draft_model for one in required.values()):
        raise ParameterError(f"the drafter {names[0]!r} takes no draft model, but one was given")
    for name, one in required.items():
        if one.torch:
            require_torch(f"the drafter {name!r}")
        if draft is None and one.draft_model:
            raise ParameterError(f"the drafter {name!r} needs a draft model, and none was given")
    if draft is None and (chosen.draft_weights != "auto" or chosen.draft_head is not None):
        raise ParameterError("draft_weights and draft_head are a draft model's, and none was given")
    model = target if isinstance(target, LoadedModel) else open_target(target, chosen)
    drafting = draft if draft is None or isinstance(draft, LoadedModel) else open_draft(draft, chosen)
    if drafting is not None and any(one.draft_model and one.same_vocabulary for one in required.values()):
        check_pair(model.tokenizer, drafting.tokenizer, model.name, drafting.name)
    parts = Parts(
        model.runtime.vocab_size,
        target=model.runtime,
        draft=drafting.runtime if drafting else None,
        target_model=model,
        draft_model=drafting,
        prefix_bytes=chosen.prefix_bytes,
    )
    adapts = chosen.adaptive and tuple(names) != ("none",)
    return Engine(
        model,
        {name: drafters.module(name).create(config, parts) for name, config in configs.items()},
        rules,
        rule=chosen.accept,
        make_rule=verify.rule,
        gammas={name: config.gamma for name, config in configs.items()},
        max_batch=chosen.max_batch,
        sampler=default_sampler(),
        controller=_controller(required, model, drafting, chosen.prior) if adapts else None,
        prefix_bytes=chosen.prefix_bytes,
        kv_bytes=chosen.kv_bytes,
        special_tokens_in_messages=chosen.special_tokens_in_messages,
    )


def _controller(
    required: Mapping[str, Requirements],
    model: LoadedModel,
    draft: LoadedModel | None,
    prior: Mapping[str, float],
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


def open_target(target: str | Path, options: LoadOptions) -> LoadedModel:
    """Load a target with the settings that concern it."""
    return load_model(
        resolve(str(target)), weights=options.weights, backend=options.backend, threads=options.threads,
        context=options.context,
    )  # fmt: skip


def open_draft(draft: str | Path, options: LoadOptions) -> LoadedModel:
    """Load a draft model with the settings that concern it."""
    return load_draft(
        resolve(str(draft)), weights=options.draft_weights, head=options.draft_head, backend=options.backend,
        threads=options.threads,
    )  # fmt: skip
