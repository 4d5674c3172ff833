"""The tiny pair that ships with the package, loaded once for all tests, and engines over it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping

import pytest

from outpace.catalogue import resolve
from outpace.core.torch_extra import has_torch
from outpace.engine.build import load
from outpace.engine.engine import Engine
from outpace.runtimes.loading import LoadedModel, load_model

needs_torch = pytest.mark.skipif(not has_torch(), reason="torch is not installed")


@functools.cache
def model(name: str = "tiny", context: int | None = None, backend: str = "auto") -> LoadedModel:
    """A model of the pair in float32, on one thread. Skips the test where its backend is not installed."""
    if backend == "torch":
        pytest.importorskip("torch")
    return load_model(resolve(name), weights="f32", backend=backend, threads=1, context=context)


@functools.cache
def shared_engine(
    drafter: str = "draft_model", max_batch: int = 8, accept: str = "match", backend: str = "auto"
) -> Engine:
    """An engine that several tests use: what they do to it must not last."""
    return new_engine(drafter, max_batch=max_batch, accept=accept, backend=backend)


def new_engine(
    drafter: str = "draft_model",
    *,
    max_batch: int = 8,
    accept: str = "match",
    backend: str = "auto",
    context: int | None = None,
    draft_context: int | None = None,
    end_tokens: Collection[int] | None = None,
    drafter_options: Mapping[str, Mapping[str, object]] | None = None,
) -> Engine:
    """``drafter`` "own": the target drafts for itself. Lookup drafts after a match of one token already, so that
    every prompt drafts something. No controller, so that counts are the same every time."""
    target = model("tiny", context, backend)
    if end_tokens is not None:
        target = dataclasses.replace(target, end_tokens=frozenset(end_tokens))
    if drafter == "lookup" and drafter_options is None:
        drafter_options = {"lookup": {"min_match": 1}}
    draft = {"draft_model": "tiny-draft", "own": "tiny"}.get(drafter)
    return load(
        target,
        model(draft, draft_context, backend) if draft else None,
        drafter="draft_model" if draft else drafter,
        controller="fixed",
        accept=accept,
        max_batch=max_batch,
        drafter_options=drafter_options,
    )


def open_slots(engine: Engine) -> int:
    """What is still held: slots of the target and of the draft, and sessions that the drafter or the engine knows."""
    drafter = engine.scheduler.loop._drafter
    held = engine.scheduler.loop.cache.slots + engine.open_requests[0]
    held += drafter._cache.slots if hasattr(drafter, "_cache") else 0
    return held + sum(len(getattr(drafter, name, ())) for name in ("_states", "_readers"))
