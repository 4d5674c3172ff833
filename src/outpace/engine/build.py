"""The only place that joins the parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from .. import drafters, verify
from ..core.errors import ParameterError
from ..core.protocols import Parts
from ..models.catalogue import resolve
from ..models.loading import LoadedModel, load_model
from ..models.pairing import check_pair
from .engine import Engine


def load(
    target: str | Path | LoadedModel,
    draft: str | Path | LoadedModel | None = None,
    *,
    drafter: str | None = None,
    gamma: int | None = None,
    accept: str = "match",
    dtype: str = "auto",
    draft_dtype: str = "auto",
    context: int | None = None,
    max_batch: int = 8,
    options: Mapping[str, object] | None = None,
) -> Engine:
    """Load a target, and what drafts for it, into an engine.

    ``target``, ``draft``: a catalogue name, a GGUF file, a Hugging Face directory, or a loaded model.
    ``drafter``: a module of ``outpace.drafters``; by default ``draft_model`` when a draft is given and
    ``lookup`` otherwise. ``gamma``: drafted tokens a round (the drafter's own default when None).
    ``accept``: a module of ``outpace.verify``. ``dtype``: "auto", "float32" or "bfloat16". ``options``:
    fields of the drafter's Config. Raises ModelError, VocabularyError, CatalogueError, ParameterError.
    """
    rule = verify.rule(accept)
    name = drafter or ("draft_model" if draft is not None else "lookup")
    module = drafters.module(name)
    if draft is not None and not module.NEEDS_DRAFT:
        raise ParameterError(f"the drafter {name!r} takes no draft model, but one was given")
    if draft is None and module.NEEDS_DRAFT:
        raise ParameterError(f"the drafter {name!r} needs a draft model, and none was given")
    config = _config(module.Config, name, dict(options or {}), gamma)
    model = _model(target, dtype, context)
    drafting = None
    if draft is not None:
        drafting = _model(draft, draft_dtype, context)
        check_pair(model.tokenizer, drafting.tokenizer, model.name, drafting.name)
    parts = Parts(rule, model.runtime.vocab_size, drafting.runtime if drafting else None)
    built = module.create(config, parts)
    return Engine(model, built, rule, names=(name, accept), gamma=config.gamma, max_batch=max_batch)


def _model(model: str | Path | LoadedModel, dtype: str, context: int | None) -> LoadedModel:
    return model if isinstance(model, LoadedModel) else load_model(resolve(str(model)), dtype=dtype, context=context)


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
