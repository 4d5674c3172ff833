"""torch is optional: what needs it asks here first."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from .errors import ParameterError


def has_torch() -> bool:
    """Whether torch is installed."""
    return find_spec("torch") is not None


def torch_version() -> str:
    """The version of torch that is installed, or "not installed"; torch itself is not imported."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def require_torch(what: str, why: str = "") -> None:
    """Raise ParameterError, which says that ``what`` needs torch and how to get it, where it is not installed."""
    if not has_torch():
        because = f" ({why})" if why else ""
        raise ParameterError(f"{what} needs torch, which is not installed{because}: pip install 'outpace[torch]'")
