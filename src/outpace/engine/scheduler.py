"""Which requests take part in the next round, and where their answers end. Streams and scoring work through it."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.fork import ProcessLock
from ..core.prefix_cache import CacheUser
from ..core.protocols import Controller, Drafter, Rule, Runtime, Session
from ..core.types import Array
from ..sampling.logprobs import token_logprobs
from .admission import Admission, fail
from .loop import Loop
from .open_request import OpenRequest


class Scheduler:
    """All open requests of an engine over one loop; they advance together, whoever steps. ``draft_caches``: those of
    all drafters. What changes several things at once holds ``lock``; :meth:`step` and :meth:`free_ended` take it
    themselves."""

    def __init__(
        self,
        runtime: Runtime,
        drafter: Drafter,
        rule: Rule,
        *,
        controller: Controller,
        draft_caches: Sequence[CacheUser],
        max_batch: int,
        kv_bytes: int | None,
        prefix_bytes: int,
    ) -> None:
        self.runtime = runtime
        self.loop = Loop(runtime, drafter, rule, self._commit, controller=controller, prefix_bytes=prefix_bytes)
        users = [self.loop.cache_user, *draft_caches]
        self.admission = Admission(self.loop, users, max_batch, kv_bytes, prefix_bytes)
        self.lock = ProcessLock("the engine", lambda: self.admission.busy)
        self.held = 0  # bytes of keys and values after the last round

    def submit(self, opened: OpenRequest) -> None:
        """Queue a request; one that has nothing to generate has ended."""
        if opened.session.finish is None:
            self.admission.waiting.append(opened)
        else:
            opened.ended = True

    def step(self) -> bool:
        """One round for all open requests. False when there is nothing to do."""
        with self.lock:
            self.free_ended()
            try:
                self.admission.prepare_round()
                self.admission.join()
            finally:
                self.free_ended()
            running = list(self.admission.running.values())
            if not running:
                return False
            try:
                self.loop.round([opened.session for opened in running])
            except BaseException as error:  # nobody knows how far the round came: all that took part in it end
                for opened in running:
                    fail(opened, error)
                self.free_ended()
                raise
            self.free_ended()
            return True

    def free_ended(self) -> None:
        """Free what requests hold that have ended or been cancelled."""
        with self.lock:
            for opened in self.admission.withdrawn():
                opened.ended = True
            running = list(self.admission.running.values())
            for opened in [one for one in running if one.cancelled or one.session.finish is not None]:
                try:
                    self.admission.release(opened)
                finally:
                    opened.ended = True
            self.held = self.admission.held

    def _commit(self, session: Session, tokens: Sequence[int], rows: Sequence[Array]) -> int:
        """The one place where an answer ends: end tokens, stop strings, the limit of length."""
        opened = self.admission.running[session.id]
        for taken, (token, row) in enumerate(zip(tokens, rows, strict=True), start=1):
            session.tokens.append(token)
            stopped = opened.text.push(token)
            if opened.logprobs is not None:
                opened.logprobs.append(token_logprobs(row, token, session.request.params.logprobs or 0))
            if stopped or token in opened.ends:
                session.finish = "stop"
            elif len(session.tokens) >= session.request.limit:
                session.finish = "length"
            if session.finish is not None:
                return taken
        return len(tokens)
