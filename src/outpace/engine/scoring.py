"""How probable the target finds a text that is already there."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from ..core.errors import NumericsError
from ..core.types import Chunk
from ..sampling.logprobs import TokenLogprobs, token_logprobs
from .scheduler import Scheduler


def prompt_logprobs(
    scheduler: Scheduler, ids: Sequence[int], top: int, *, rows: int
) -> Generator[list[TokenLogprobs], None, None]:
    """See :meth:`outpace.engine.engine.Engine.prompt_logprobs`."""
    admission, cache = scheduler.admission, scheduler.loop.cache
    with scheduler.lock:
        claim = admission.claim(len(ids))
    try:
        while True:
            with scheduler.lock:
                scheduler.free_ended()
                admission.join()
            if claim.error is not None:
                raise claim.error
            if claim.slot >= 0:
                break
            yield []
        for start in range(0, len(ids) - 1, rows):
            part = ids[start : min(start + rows, len(ids) - 1)]
            with scheduler.lock:
                logits = scheduler.runtime.forward([Chunk(claim.slot, part)], cache).logits[0]  # [rows, vocab_size]
            if not all(math.isfinite(row.max()) for row in logits):
                raise NumericsError(f"the model gave broken logits for the prompt's tokens from {start} on")
            following = ids[start + 1 : start + 1 + len(part)]
            yield [token_logprobs(row, token, top) for row, token in zip(logits, following, strict=True)]
    finally:
        with scheduler.lock:
            admission.drop(claim)
