"""What an operator decides about a server; nothing here can be changed by a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.errors import ParameterError


@dataclass(frozen=True)
class ServerSettings:
    """``model``: the name it is served under (None: the target's own). ``keys``: API keys, any of which opens the
    server; none leaves it open. ``hosts``: accepted Host headers without port, none accepts all (a server on loopback
    names its own, so that no web page can reach it under another name). ``most_open``: answers running and waiting;
    one more request is refused with 429. ``timeout``: seconds an answer may take, waiting included. ``read_timeout``:
    seconds for a request's head to arrive, and its body (a large one gets more). ``stall_timeout``: seconds in which a
    client must take some of what is sent to it. ``most_connections``: open at once. ``most_body``: bytes of a request's
    body."""

    model: str | None = None
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    most_open: int = 64
    timeout: float = 600.0
    read_timeout: float = 20.0
    stall_timeout: float = 60.0
    most_connections: int = 512
    most_body: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("most_open", "most_connections", "most_body"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("timeout", "read_timeout", "stall_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ParameterError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        if any(not key or not key.isascii() or key != key.strip() for key in self.keys):
            raise ParameterError("an API key must be ASCII text without spaces around it")
