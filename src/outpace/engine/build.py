"""The only place that joins the parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from .. import drafters, verify
from ..core.errors import ParameterError
from ..core.protocols import Parts
from ..kernels.native import open_library
from ..kernels.sampling import Sampler
from ..models.catalogue import resolve
from ..models.loading import LoadedModel, load_draft, load_model
from ..models.pairing import check_pair
from .engine import Engine


def load(
    target: str | Path | LoadedModel,
    draft: str | Path | LoadedModel | None = None,
    *,
    drafter: str | None = None,
    gamma: int | None = None,
    accept: str = "match",
    weights: str = "auto",
    draft_weights: str = "auto",
    draft_head: int | None = None,
    backend: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    max_batch: int = 8,
    options: Mapping[str, object] | None = None,
) -> Engine:
    """Load a target, and what drafts for it, into an engine.

    ``target``, ``draft``: a catalogue name, a GGUF file, a Hugging Face directory, or a loaded model.
    ``drafter``: a module of ``outpace.drafters``; by default ``draft_model`` when a draft is given and
    ``lookup`` otherwise. ``gamma``: drafted tokens a round (the drafter's own default when None).
    ``accept``: a module of ``outpace.verify``. ``weights``, ``backend``, ``threads`` and ``context`` are the
    target's, see :func:`outpace.models.loading.load_model`; ``draft_weights`` and ``draft_head`` the draft's, see
    :func:`outpace.models.loading.load_draft`. ``max_batch``: sessions that share a pass. ``options``: fields of
    the drafter's Config. Raises ModelError, VocabularyError, CatalogueError, ParameterError.
    """
    if isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1:
        raise ParameterError(f"max_batch must be a whole number of at least 1, not {max_batch!r}")
    rule = verify.rule(accept)
    name = drafter or ("draft_model" if draft is not None else "lookup")
    module = drafters.module(name)
    if draft is not None and not module.NEEDS_DRAFT:
        raise ParameterError(f"the drafter {name!r} takes no draft model, but one was given")
    if draft is None and module.NEEDS_DRAFT:
        raise ParameterError(f"the drafter {name!r} needs a draft model, and none was given")
    if draft is None and (draft_weights != "auto" or draft_head is not None):
        raise ParameterError("draft_weights and draft_head are a draft model's, and none was given")
    config = _config(module.Config, name, dict(options or {}), gamma)
    model = target if isinstance(target, LoadedModel) else load_model(
        resolve(str(target)), weights=weights, backend=backend, threads=threads, context=context
    )  # fmt: skip
    drafting = None
    if draft is not None:
        drafting = draft if isinstance(draft, LoadedModel) else load_draft(
            resolve(str(draft)), weights=draft_weights, head=draft_head, backend=backend, threads=threads
        )  # fmt: skip
        check_pair(model.tokenizer, drafting.tokenizer, model.name, drafting.name)
    parts = Parts(rule, model.runtime.vocab_size, drafting.runtime if drafting else None)
    built = module.create(config, parts)
    library = open_library()
    return Engine(
        model,
        built,
        rule,
        names=(name, accept),
        gamma=config.gamma,
        max_batch=max_batch,
        sampler=Sampler(library) if library else None,
    )


def _config(kind: type, name: str, options: dict[str, object], gamma: int | None):  # type: ignore[no-untyped-def]
    """The drafter's Config with the options given. Raises ParameterError for one it does not have."""
    known = {field.name for field in dataclasses.fields(kind)}
    for option in options:
        if option not in known:
            raise ParameterError(f"the drafter {name!r} has no option {option!r}; it has {', '.join(sorted(known))}")
    if gamma is not None:
        if isinstance(gamma, bool) or not isinstance(gamma, int) or gamma < 0:
            raise ParameterError(f"gamma must be a whole number of at least 0, not {gamma!r}")
        options["gamma"] = gamma
    return kind(**options)
