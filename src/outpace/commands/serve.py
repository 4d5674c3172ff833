"""Serve a model over HTTP, as OpenAI's API does, with a page to try it at /.

Listens on loopback; --host opens it to others, who then should need a key (--api-keys). Ctrl-C and SIGTERM let the
answers that run come to their ends, for --grace seconds at most. docs/how-to/serve.md says what can be asked.
"""

from __future__ import annotations

import argparse
import ipaddress
import socket
import sys
from pathlib import Path

from ._models import add_model_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    where = parser.add_argument_group("where and for whom")
    where.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    where.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 takes a free one (8000)")
    where.add_argument("--api-keys", metavar="FILE", help="file with the keys that open the server, one a line")
    where.add_argument("--name", help="what the model is called there (its name here)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-batch", type=int, default=8, metavar="N", help="answers that share a pass (8)")
    limits.add_argument(
        "--max-open", type=int, default=64, metavar="N", help="answers running and waiting; more get 429 (64)"
    )
    limits.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="S",
        help="seconds for an answer, waiting too; then it ends as it is (600)",
    )
    limits.add_argument(
        "--read-timeout", type=float, default=20, metavar="S",
        help="seconds for the head of a request to arrive, and for its body; a large body gets more (20)",
    )  # fmt: skip
    limits.add_argument(
        "--stall-timeout", type=float, default=60, metavar="S",
        help="a client that takes nothing of its answer for so many seconds is dropped (60)",
    )  # fmt: skip
    limits.add_argument("--max-connections", type=int, default=512, metavar="N", help="open at once (512)")
    limits.add_argument("--kv-memory", type=int, metavar="MIB", help="memory for keys and values in all (no limit)")
    limits.add_argument(
        "--prefix-memory", type=int, default=256, metavar="MIB",
        help="of it, for the prefix cache, which later requests share (256)",
    )  # fmt: skip
    limits.add_argument("--max-body", type=int, default=1 << 20, metavar="BYTES", help="size of a request (1048576)")
    limits.add_argument("--grace", type=int, default=30, metavar="S", help="seconds that answers get at the end (30)")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from ..core.errors import ParameterError

    try:
        from ..serve.app import create_app
        from ..serve.connections import server
    except ImportError as error:
        raise ParameterError(
            f"a package of the server is missing ({error}): pip install 'fastapi>=0.120' 'uvicorn>=0.30' "
            "'prometheus_client>=0.20', or in a checkout pip install '.[serve]'"
        ) from None
    from ..serve.settings import ServerSettings

    loopback = is_loopback(args.host)
    settings = ServerSettings(
        model=args.name,
        keys=read_keys(args.api_keys),
        hosts=tuple({"localhost", "127.0.0.1", "[::1]", args.host}) if loopback else (),
        most_open=args.max_open,
        timeout=args.timeout,
        read_timeout=args.read_timeout,
        stall_timeout=args.stall_timeout,
        most_connections=args.max_connections,
        most_body=args.max_body,
    )
    listener = bind(args.host, args.port)  # before minutes are spent on loading
    engine = load_from(
        args,
        max_batch=args.max_batch,
        kv_bytes=None if args.kv_memory is None else args.kv_memory << 20,
        prefix_bytes=args.prefix_memory << 20,
    )
    http = server(create_app(engine, settings), settings, listener, timeout_graceful_shutdown=args.grace)
    if not loopback and not settings.keys:
        print("outpace: anyone who reaches this address may use it; --api-keys asks for a key", file=sys.stderr)
    listener.listen(2048)  # from now on a client waits; it is not refused, even if the line below is read at once
    host, port = listener.getsockname()[:2]
    name = settings.model or engine.target.name
    print(f"serving {name} on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    http.run(sockets=[listener])
    return 0


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises ParameterError when it cannot be had."""
    from ..core.errors import ParameterError

    # With its protocol named, or asyncio would not switch off Nagle's algorithm: each small event would wait 40 ms.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ParameterError(f"cannot listen on {host} port {port}: {error}") from None
    return listener


def read_keys(file: str | None) -> tuple[str, ...]:
    """The lines of a file of keys, without empty ones and comments. Raises ParameterError when there is none."""
    from ..core.errors import ParameterError

    if file is None:
        return ()
    try:
        lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"--api-keys {file} cannot be read: {error}") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ParameterError(f"--api-keys {file} holds no key")
    return keys
