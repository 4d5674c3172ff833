"""Opening the C kernels: one library per instruction set, the best that this CPU runs."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..core.errors import ParameterError
from .build import library_name, sources_digest

VARIANTS = MappingProxyType({"plain": 0, "avx2": 1, "avx512": 2})  # op_cpu_supports' numbers, worst to best


class Matrix(Structure):
    """``op_matrix`` of csrc/common.h: a packed matrix of ``rows`` outputs and ``cols`` inputs."""

    _fields_ = [("kind", c_int32), ("act_format", c_int32), ("rows", c_int64), ("cols", c_int64), ("data", c_void_p)]


@dataclass(frozen=True, eq=False)
class Library:
    """An opened kernel library. ``functions``: its C functions; ``variant``: "plain", "avx2" or "avx512"."""

    functions: ctypes.CDLL
    variant: str


def available() -> tuple[str, ...]:
    """The variants that are built from this package's sources and that this CPU runs, best first; empty without."""
    plain = _open("plain")
    if plain is None:
        return ()
    return tuple(
        name for name, number in [*VARIANTS.items()][::-1] if plain.op_cpu_supports(number) and _open(name) is not None
    )


def open_library(variant: str | None = None) -> Library | None:
    """Opens a variant, or the best one; None when none can be used (``missing_notice`` says why).

    Raises ParameterError when ``variant`` is unknown, not built, or not for this CPU.
    """
    usable = available()
    if variant is None:
        if not usable:
            return None
        variant = usable[0]
    elif variant not in usable:
        raise ParameterError(f"kernel variant {variant!r} cannot be used here; usable: {', '.join(usable) or 'none'}")
    functions = _open(variant)
    if functions is None:
        return None
    return Library(_declare(functions), variant)


def missing_notice() -> str:
    """What to tell a user whose installation has no kernels that can be used."""
    found = _try_open("plain")
    why = found if isinstance(found, str) else "no C kernels can be used"
    return (
        f"outpace: {why}. "
        "With a C compiler and OpenMP (gcc or clang), `python -m outpace.kernels.build` builds the kernels."
    )


def _path(variant: str) -> Path:
    return Path(__file__).with_name(library_name(variant))


def _open(variant: str) -> ctypes.CDLL | None:
    found = _try_open(variant)
    return None if isinstance(found, str) else found


def _try_open(variant: str) -> ctypes.CDLL | str:
    """The library of a variant, or why it cannot be used."""
    path = _path(variant)
    if not path.exists():
        return "the C kernels are not built"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # for instance where libgomp is missing
        return f"the C kernels cannot be opened ({error})"
    made_of = getattr(library, "op_sources", None)  # a library that is older than this question has no answer
    if made_of is not None:
        made_of.restype = c_uint64
    if made_of is None or made_of() != sources_digest():
        return "the C kernels were built from other sources than this package's"
    return library


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives the linears' functions their C signatures (csrc/common.h)."""
    matrix = POINTER(Matrix)
    signatures: dict[str, tuple[object, list[object]]] = {
        "op_act_bytes": (c_int64, [c_int, c_int, c_int64]),
        "op_linear": (
            None,
            [matrix, c_int, c_void_p, c_int64, c_int, c_void_p, c_int64, c_void_p, c_int],
        ),
        "op_raw_row_bytes": (c_int64, [c_int, c_int64]),
        "op_packed_bytes": (c_int64, [c_int, c_int64, c_int64]),
        "op_pack": (c_int, [c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int]),
        "op_pack_float": (c_int, [c_int, c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int]),
        "op_unpack_rows": (None, [matrix, c_int64, c_int64, POINTER(c_float)]),
        "op_dequantize_rows": (None, [c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int]),
        "op_alloc": (c_void_p, [c_int64]),
        "op_free": (None, [c_void_p, c_int64]),
        "op_cpu_supports": (c_int, [c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
