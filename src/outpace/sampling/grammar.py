"""Structured output: which tokens may come next, as a function of what was generated so far.

llguidance compiles a constraint and computes the masks; here its state follows the prefix, so that the target's
rows and a draft's, on any branch of a tree, each see the mask of their own prefix. An end token may come where
the answer is complete. Behind an end token, or behind a token that the constraint forbids (nobody commits to it,
but a draft may ask), only end tokens are allowed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from ..core.errors import ConstraintError, ParameterError
from ..core.fork import ProcessLock
from ..core.prefix_cache import shared_length
from ..core.types import Array, Constraint

_MASKS = 24  # masks remembered behind the newest: a draft's round is checked with the masks that it drew with
_SETS = 16  # different masks kept as ids: most places within a string share one
_COMPILED = 16  # constraints kept compiled
# Blanks of a JSON answer, wherever JSON allows some. Without a bound a model may write them up to the limit of tokens.
_JSON_BLANKS: Any = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t]{0,2}(\r?\n){0,2}[ \t]{0,64}"}


class HasBackend(Protocol):
    """The part of a tokenizer that a grammar needs: see :class:`outpace.text.tokenizer.Tokenizer`."""

    @property
    def size(self) -> int: ...

    @property
    def backend(self) -> Any: ...  # tokenizers.Tokenizer


class Grammars:
    """Compiles constraints for one tokenizer, and remembers the last few. May be shared between threads.

    ``ends``: the model's end tokens. ``most_bytes``: the longest text of a constraint; ``most_symbols``: the most
    symbols of its grammar (one mask of the worst grammar of 5,000 took two seconds); ``fuel``: steps of building its
    automata, about 50,000 a millisecond; ``step_fuel``: of working out one mask, about 14,000 a millisecond.
    """

    def __init__(
        self,
        tokenizer: HasBackend,
        ends: Collection[int],
        *,
        most_bytes: int = 65_536,
        most_symbols: int = 20_000,
        fuel: int = 25_000_000,
        step_fuel: int = 1_000_000,
    ) -> None:
        self._tokenizer, self._ends, self._most_bytes = tokenizer, sorted(ends), most_bytes
        self._limits: dict[str, Any] = {
            "max_grammar_size": most_symbols,
            "initial_lexer_fuel": fuel,
            "step_lexer_fuel": step_fuel,
        }
        self._lock, self._reading = ProcessLock("the compiled grammars"), ProcessLock("the grammar compiler")
        self._vocabulary: Any = None
        self._compiled: OrderedDict[Constraint, Future[Compiled]] = OrderedDict()
        self._ids = lru_cache(maxsize=_SETS)(_ids)

    def grammar(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint, in its initial state. Raises ParameterError as :meth:`compiled` does."""
        return self.compiled(constraint).grammar(constraint)

    def compiled(self, constraint: Constraint) -> Compiled:
        """A constraint that its holder keeps compiled, whatever is forgotten here meanwhile. One that another thread is
        compiling is waited for; nobody else waits.

        Raises ParameterError, naming ``constraint``, when its text is too long, cannot be read or takes too much to
        compile, and when the model has no end token or llguidance cannot read its tokenizer.
        """
        size = len(constraint.text.encode("utf-8", "replace"))
        if size > self._most_bytes:
            raise ParameterError(f"constraint has {size} bytes, more than the {self._most_bytes} allowed")
        with self._lock:
            entry = self._compiled.get(constraint)
            mine = entry is None or (entry.done() and entry.result().failed)
            if entry is None or mine:
                entry = self._compiled[constraint] = Future()
            self._compiled.move_to_end(constraint)
            done = [known for known, other in self._compiled.items() if other.done()]
            for known in done[: max(0, len(self._compiled) - _COMPILED)]:
                del self._compiled[known]
        if mine:
            try:
                drafts = Compiled(partial(self._compile, constraint), self._ends, self._ids, retries=False)
                entry.set_result(
                    Compiled(partial(self._compile, constraint), self._ends, self._ids, retries=True, drafts=drafts)
                )
            except BaseException as error:
                with self._lock:
                    self._compiled.pop(constraint, None)
                # Those who wait were not interrupted: they are told why there is nothing.
                entry.set_exception(error if isinstance(error, Exception) else InterruptedError("interrupted"))
                raise
        return entry.result()

    def _compile(self, constraint: Constraint) -> Any:
        import llguidance

        with self._reading:
            if self._vocabulary is None:
                self._vocabulary = self._read_vocabulary()
        kind: Any = constraint.kind
        try:
            if kind in ("json_object", "json_schema"):
                schema = constraint.text or '{"type": "object"}'
                if schema.strip() == "true":  # any JSON; options can only be given with an object
                    schema = "{}"
                text = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=_JSON_BLANKS)
            else:
                text = llguidance.grammar_from(kind, constraint.text)
        except ValueError as error:
            raise ParameterError(f"constraint {kind} cannot be read: {error}") from None
        limits = llguidance.LLParserLimits(**self._limits, verbose_errors=False)
        matcher = llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise ParameterError(f"constraint {kind} cannot be used: {_reason(matcher)}")
        return matcher

    def _read_vocabulary(self) -> Any:
        import llguidance

        if not self._ends:
            raise ParameterError("constraint needs a model with an end token, and this one has none")
        try:
            return llguidance.LLTokenizer(
                self._tokenizer.backend.to_str(), n_vocab=self._tokenizer.size, eos_token=self._ends
            )
        except ValueError as error:
            raise ParameterError(f"constraint cannot be used with this model's tokenizer: {error}") from None


class Compiled:
    """A compiled constraint; each request starts from a copy.

    llguidance's copies share one lexer: when a limit is reached on any path, all copies report an error from then on,
    on every path. ``retries``: a copy that reports an error is replaced by one compiled anew, and only an error of that
    one counts. ``drafts``: the same constraint for drafts, with a lexer of its own, so that no path that a draft has
    explored can change the target's masks; those report an error from the first one on, and nothing more is drafted.
    """

    def __init__(
        self,
        compile_anew: Callable[[], Any],
        ends: Sequence[int],
        ids: Callable[[bytes], Array],
        *,
        retries: bool,
        drafts: Compiled | None = None,
    ) -> None:
        self.compile_anew, self.ends, self.ids, self.retries, self.drafts = compile_anew, ends, ids, retries, drafts
        self._matcher = compile_anew()
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether a copy has reported an error, so that later requests do better with a new one."""
        return self._failed or (self.drafts is not None and self.drafts.failed)

    def copy(self) -> Any:
        """A matcher in its initial state."""
        return self._matcher.deep_copy()

    def report(self) -> None:
        """A copy has reported an error."""
        self._failed = True

    def grammar(self, constraint: Constraint) -> Grammar:
        """The grammar of the constraint that was compiled, in its initial state."""
        return Grammar(self)


class Grammar:
    """One request's state of a constraint: a matcher in the state after ``_path``, and the masks computed along it.
    PrefixCache are given without the prompt."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled, self._ids = compiled, compiled.ids
        self._matcher = compiled.copy()
        self._cache_users = True  # its lexer with other requests
        self._ends = np.array(compiled.ends)
        self._end_set = frozenset(compiled.ends)
        self._path: list[int] = []  # tokens that the matcher has consumed
        self._masks: dict[int, Array] = {}  # length of prefix to ids

    def allowed(self, prefix: Sequence[int]) -> Array:
        """Ids of the tokens that may follow ``prefix``: ascending int64, never none. Raises ConstraintError where
        working them out takes too much, or where no token of the vocabulary goes on. That says nothing about other
        prefixes."""
        try:
            return self._allowed(prefix)
        except ConstraintError:
            self._compiled.report()
            if not self._compiled.retries:
                raise
            shared, self._cache_users = self._cache_users, False
            self._matcher, self._path, self._masks = self._compiled.compile_anew(), [], {}
            if not shared:
                raise
            for length in range(len(prefix)):  # step by step, as plain decoding came here
                self.allowed(prefix[:length])
            return self.allowed(prefix)

    def _allowed(self, prefix: Sequence[int]) -> Array:
        shared, length = shared_length(self._path, prefix), len(prefix)
        if shared < length and not self._reach(prefix, shared):
            return self._ends
        if length not in self._masks:
            self._reach(prefix, length)
            mask = self._ids(self._matcher.compute_bitmask())
            self._check(mask.size > 0)
            self._masks = {n: kept for n, kept in self._masks.items() if n > length - _MASKS} | {length: mask}
        return self._masks[length]

    def _reach(self, prefix: Sequence[int], shared: int) -> bool:
        """Bring the matcher to the end of ``prefix``, of which it has ``shared`` tokens; False where that cannot be."""
        back = len(self._path) - shared
        if back:
            self._matcher.rollback(back)
            del self._path[shared:]
            self._masks = {length: mask for length, mask in self._masks.items() if length <= shared}
        rest = list(prefix[shared:])
        end = next((i for i, token in enumerate(rest) if token in self._end_set), len(rest))
        # An end token is never fed to the matcher: whether that can be rolled back depends on why it stopped.
        taken = self._matcher.try_consume_tokens(rest[:end]) if end else 0
        self._path += rest[:taken]
        if taken < end and not self._matcher.is_error():
            self._matcher.compute_bitmask()  # a lexer that has failed refuses tokens without an error
        self._check()
        return bool(taken == len(rest))

    def _check(self, goes_on: bool = True) -> None:
        if self._matcher.is_error() or not goes_on:
            reason = _reason(self._matcher) or "no token of the vocabulary goes on"
            raise ConstraintError(f"constraint cannot be followed after {len(self._path)} tokens: {reason}")


def _reason(matcher: Any) -> str:
    """Why a matcher gave up, without the tag for its state."""
    return str(matcher.get_error()).split("\n<")[0]


def _ids(bits: bytes) -> Array:
    """The ids whose bits are set."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little"))
