"""What an operator decides about a server; nothing here can be changed by a request."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import ParameterError


@dataclass(frozen=True)
class Settings:
    """``model``: the name it is served under (None: the target's own). ``keys``: API keys, any of which opens the
    server; none leaves it open. ``hosts``: accepted Host headers without port, none accepts all (a server on loopback
    names its own, so that no web page can reach it under another name). ``most_open``: answers running and waiting;
    one more request is refused with 429. ``timeout``: seconds an answer may take, waiting included. ``most_body``:
    bytes of a request's body."""

    model: str | None = None
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    most_open: int = 64
    timeout: float = 600.0
    most_body: int = 1 << 20

    def __post_init__(self) -> None:
        if self.most_open < 1:
            raise ParameterError(f"most_open must be at least 1, not {self.most_open}")
        if not self.timeout > 0:
            raise ParameterError(f"timeout must be above 0 seconds, not {self.timeout}")
        if self.most_body < 1:
            raise ParameterError(f"most_body must be at least 1 byte, not {self.most_body}")
        if any(not key or not key.isascii() or key != key.strip() for key in self.keys):
            raise ParameterError("an API key must be ASCII text without spaces around it")
