"""How probable the target finds a text that is already there."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from ..core.errors import NumericsError
from ..core.types import Chunk
from ..sampling.logprobs import TokenLogprobs, token_logprobs
from .engine import Engine


def prompt_logprobs(
    engine: Engine, ids: Sequence[int], top: int, *, rows: int = 32
) -> Generator[list[TokenLogprobs], None, None]:
    """Log-probabilities of ``ids[1:]``, each given those before it, with ``top`` alternatives; a pass over at most
    ``rows`` rows at a time, between which other requests may make rounds. Yields nothing new, an empty list, while it
    waits for memory: rounds must go on then. Raises ContextError, NumericsError, and what no slot could be had for."""
    runtime, cache, lock, admission = engine.target.runtime, engine._loop.cache, engine._lock, engine._admission
    with lock:
        claim = admission.claim(len(ids))
    try:
        while True:
            with lock:
                engine._reap()
                admission.join()
            if claim.error is not None:
                raise claim.error
            if claim.slot >= 0:
                break
            yield []
        for start in range(0, len(ids) - 1, rows):
            part = ids[start : min(start + rows, len(ids) - 1)]
            with lock:
                logits = runtime.forward([Chunk(claim.slot, part)], cache).logits[0]  # [rows, vocab_size]
            if not all(math.isfinite(row.max()) for row in logits):
                raise NumericsError(f"the model gave broken logits for the prompt's tokens from {start} on")
            following = ids[start + 1 : start + 1 + len(part)]
            yield [token_logprobs(row, token, top) for row, token in zip(logits, following, strict=True)]
    finally:
        with lock:
            admission.drop(claim)
