"""Running a chat template, which is a program from a model's file: in Jinja's sandbox, within limits.

The sandbox keeps a template away from the machine, but not from its time and memory: ``'a' * 10**10``, loops in loops,
a list that holds itself twice, forty levels deep. So every operation that makes a value larger, every call and every
turn of a loop is counted, and values are weighed before they are built. All of it is cooperative, so that a template
may run in any thread.
"""

from __future__ import annotations

import json
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import ext, filters, nodes, pass_context
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MOST_SOURCE = 1 << 18  # characters of a template
STEPS = 1_000_000  # calls, operations and turns of loops of a rendering
SECONDS = 10.0  # of a rendering
CHARACTERS = 1 << 22  # of any text it makes, in addition to eight times what it was given
_DIGITS = 4096  # bits of a whole number
_WIDTH = 10_000  # characters that a format may pad to


class RefusedError(Exception):
    """The template called raise_exception."""


class LimitError(Exception):
    """The template takes more than it may."""


def run_template(source: str, variables: Mapping[str, Any]) -> str:
    """What the template makes of the variables. Raises RefusedError, LimitError, and whatever Jinja does."""
    if len(source) > MOST_SOURCE:
        raise LimitError(f"it has {len(source)} characters, more than {MOST_SOURCE}")
    allowance = _Allowance()
    allowance.most += 8 * allowance.weigh(variables, 1 << 60)
    before = _ALLOWANCE.set(allowance)
    try:
        return _compiled(source).render(variables)
    finally:
        _ALLOWANCE.reset(before)


class _Allowance:
    """What one rendering may still take."""

    def __init__(self) -> None:
        self.most = CHARACTERS
        self._steps = STEPS
        self._until = time.monotonic() + SECONDS

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise LimitError(f"it takes more than {STEPS} steps")
        if time.monotonic() > self._until:
            raise LimitError(f"it takes longer than {SECONDS:g} s")

    def fits(self, size: int) -> None:
        """Raises LimitError where a value of ``size`` characters or elements must not be made."""
        if size > self.most:
            raise LimitError(f"it makes a value of more than {self.most} characters")

    def weigh(self, value: Any, most: int | None = None) -> int:
        """About the characters that the value takes when written. One that is held twice counts twice."""
        total, left, most = 0, [value], self.most if most is None else most
        while left:
            one = left.pop()
            if isinstance(one, (str, bytes)):
                total += len(one) + 2
            elif isinstance(one, Mapping):
                total += 2
                left += one.keys()
                left += one.values()
            elif isinstance(one, (list, tuple, set, frozenset)):
                total += 2
                left += one
            else:
                total += 8 if not isinstance(one, int) else 8 + one.bit_length() // 3
            if total + len(left) > most:
                raise LimitError(f"it makes a value of more than {most} characters")
        return total


_ALLOWANCE: ContextVar[_Allowance] = ContextVar("allowance")


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    environment = _Environment()
    code = environment.compile(_Counting().visit(environment.parse(source)))
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        for name in ("pprint", "urlize", "wordwrap", "xmlattr"):  # no template needs them, and they grow what they get
            del self.filters[name]
        self.filters |= _FILTERS
        del self.globals["lipsum"]
        self.globals["namespace"] = _Names
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:  # of the whole, a block, a macro
        allowance, size, kept = _ALLOWANCE.get(), 0, []
        for piece in pieces:
            size += len(piece)
            allowance.fits(size)
            kept.append(piece)
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = _ALLOWANCE.get()
        allowance.step()
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_percent(str(left), right)
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (str, bytes, list, tuple)) and isinstance(other, int):
                    allowance.fits(max(0, int(other)) * allowance.weigh(one))
        elif operator == "+" and not isinstance(left, (int, float)):
            allowance.fits(allowance.weigh(left) + allowance.weigh(right))
        if isinstance(left, int) and isinstance(right, int):
            bits = (
                left.bit_length() * max(1, abs(right)) if operator == "**" else left.bit_length() + right.bit_length()
            )
            if bits > _DIGITS:
                raise LimitError(f"it makes a number of more than {_DIGITS} bits")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  (as there)
        allowance = _ALLOWANCE.get()
        allowance.step()
        size = allowance.weigh((args, kwargs))
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            check = _METHODS.get(__obj.__name__)
            if check is not None:
                check(allowance, owner, args, size)
        result = super().call(__context, __obj, *args, **kwargs)
        return _weighed_or_lazy(result)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            allowance, text = _ALLOWANCE.get(), str(value.__self__)
            fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None]
            for _, spec in fields:
                if "{" in (spec or ""):
                    raise LimitError("it formats with a width that is worked out")
                _check_width(spec or "")
            allowance.fits(len(text) + len(fields) * (_WIDTH // 100 + allowance.weigh((args, kwargs))))
            return wrapped(*args, **kwargs)

        return checked


class _Names(Namespace):
    """Its values may hold it, twice: it is never written out."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(ext.Extension):
    """``{% generation %}`` marks what training learns from; for rendering it is just its content."""

    tags = {"generation"}  # noqa: RUF012  (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Sends what Jinja does not hand to its sandbox through filters of ours."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (as there)
        changed: Any = self.generic_visit(node)
        changed.iter = _through("_turns", changed.iter)
        return changed

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        changed: Any = self.generic_visit(node)
        return _through("_joined", nodes.List(changed.nodes, lineno=node.lineno))

    def _value(self, node: Any) -> nodes.Node:
        node = self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _through("_weighed", node)

    visit_List = visit_Tuple = visit_Dict = visit_Filter = _value  # noqa: N815

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:  # noqa: N802
        node.body = [self.visit(child) for child in node.body]  # its filter has no value to be sent through another
        return node


def _through(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Turns:
    """What a loop goes through, counted."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        step = _ALLOWANCE.get().step
        for value in self._values:
            step()
            yield value

    def __len__(self) -> int:
        return len(self._values)


def _weighed_or_lazy(value: Any) -> Any:
    allowance = _ALLOWANCE.get()
    allowance.step()
    if isinstance(value, (str, bytes, list, tuple, dict)):
        allowance.weigh(value)
    return value


def _listed(values: Any) -> list[Any]:
    found = list(_Turns(values))
    _ALLOWANCE.get().weigh(found)
    return found


def _refuse(message: object) -> None:
    raise RefusedError(str(message))


def _check_width(spec: str) -> None:
    if any(int(number) > _WIDTH for number in re.findall(r"\d{1,20}", spec)):
        raise LimitError(f"it pads to more than {_WIDTH} characters")


def _check_percent(text: str, values: Any) -> None:
    """Of ``text % values``."""
    allowance, specs = _ALLOWANCE.get(), re.findall(r"%(?:\([^)]*\))?[^a-zA-Z%]*", text)
    for spec in specs:
        if "*" in spec:
            raise LimitError("it formats with a width that is worked out")
        _check_width(re.sub(r"\([^)]*\)", "", spec))
    allowance.fits(len(text) + len(specs) * (_WIDTH // 100 + allowance.weigh(values)))


def _number(value: Any, default: int = 0) -> int:
    return abs(value) if isinstance(value, int) else default


def _pads(allowance: _Allowance, owner: Any, args: Any, size: int) -> None:
    allowance.fits(max(map(_number, args), default=0))


def _widens(allowance: _Allowance, owner: Any, args: Any, size: int) -> None:
    allowance.fits(len(owner) * max(map(_number, args), default=8))


def _replaces(allowance: _Allowance, owner: Any, args: Any, size: int) -> None:
    old, new = (len(one) if isinstance(one, (str, bytes)) else 0 for one in (*args, "", "")[:2])
    found = (len(owner) + 1) if not old else owner.count(args[0])
    allowance.fits(len(owner) + found * new)


def _joins(allowance: _Allowance, owner: Any, args: Any, size: int) -> None:
    if not all(isinstance(one, (str, list, tuple, dict)) for one in args):
        raise LimitError("it joins what is not a list")
    allowance.fits(size + len(owner) * max((len(one) for one in args), default=0))


def _never(allowance: _Allowance, owner: Any, args: Any, size: int) -> None:
    raise LimitError("it calls a method that no chat template needs")


_METHODS: dict[str, Callable[[_Allowance, Any, Any, int], None]] = {
    **dict.fromkeys(["center", "ljust", "rjust", "zfill"], _pads),
    **dict.fromkeys(["translate", "format_map", "to_bytes"], _never),
    "expandtabs": _widens,
    "replace": _replaces,
    "join": _joins,
}  # those that may give far more than they get


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    values = _listed(value)
    allowance = _ALLOWANCE.get()
    allowance.fits(allowance.weigh(values) + len(values) * len(str(d)))
    return str(filters.sync_do_join(context.eval_ctx, values, d, attribute))


@pass_context
def _replace(context: Context, s: str, old: str, new: str, count: int | None = None) -> str:
    text = str(s)
    _replaces(_ALLOWANCE.get(), text, (str(old), str(new)), 0)
    return text.replace(str(old), str(new), -1 if count is None else count)


@pass_context
def _indent(context: Context, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else _number(width)
    _ALLOWANCE.get().fits(len(s) + size * (1 + len(s.splitlines())))
    return filters.do_indent(s, width, first, blank)


@pass_context
def _center(context: Context, value: str, width: int = 80) -> str:
    _ALLOWANCE.get().fits(_number(width))
    return filters.do_center(value, width)


@pass_context
def _format(context: Context, value: str, *args: Any, **kwargs: Any) -> str:
    _check_percent(str(value), (args, kwargs))
    return filters.do_format(value, *args, **kwargs)


@pass_context
def _batch(context: Context, value: Any, linecount: int, fill_with: Any = None) -> Any:
    _ALLOWANCE.get().fits(_number(linecount) * (2 + _ALLOWANCE.get().weigh(fill_with)))
    return list(filters.do_batch(_listed(value), linecount, fill_with))


@pass_context
def _slice(context: Context, value: Any, slices: int, fill_with: Any = None) -> Any:
    _ALLOWANCE.get().fits(_number(slices) * (2 + _ALLOWANCE.get().weigh(fill_with)))
    return list(filters.sync_do_slice(_listed(value), slices, fill_with))


@pass_context
def _round(context: Context, value: float, precision: int = 0, method: str = "common") -> float:
    if _number(precision) > 100:
        raise LimitError("it rounds to more than 100 digits")
    return filters.do_round(value, precision, method)  # type: ignore[arg-type]


@pass_context
def _sum(context: Context, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise LimitError("it sums up what are not numbers")
    return filters.sync_do_sum(context.environment, _listed(value), attribute, start)


@pass_context
def _string(context: Context, value: Any) -> str:
    _ALLOWANCE.get().weigh(value)
    return str(value)


@pass_context
def _to_json(context: Context, value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as models saw it in training: letters of any script as they are, nothing escaped for HTML."""
    _ALLOWANCE.get().weigh((value, options))
    encoder = json.JSONEncoder(indent=indent, **{"ensure_ascii": False, **options})
    if isinstance(indent, int) and indent > 16:
        raise LimitError("it indents JSON by more than 16 characters")
    return _Environment.concat(encoder.iterencode(value))


@pass_context
def _joined(context: Context, values: list[Any]) -> str:
    _weighed_or_lazy(values)
    return "".join(map(str, values))


_FILTERS: dict[str, Callable[..., Any]] = {
    "join": _join, "replace": _replace, "indent": _indent, "center": _center, "format": _format, "batch": _batch,
    "slice": _slice, "round": _round, "sum": _sum, "string": _string, "tojson": _to_json, "_joined": _joined,
    "list": pass_context(lambda context, values: _listed(values)),
    "_weighed": pass_context(lambda context, value: _weighed_or_lazy(value)),
    "_turns": pass_context(lambda context, values: _Turns(values)),
}  # fmt: skip
