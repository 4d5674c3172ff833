"""``python -m outpace.audit.engines ENGINE --target MODEL --draft MODEL``: audit one engine."""

from __future__ import annotations

import argparse
import sys

from ...catalogue import resolve
from ...core.errors import OutpaceError
from . import audit_engine, names, print_table


def main() -> int:
    """The command line; the status is 1 when anything differs, is rejected or cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m outpace.audit.engines", description="Audit an engine from outside."
    )
    parser.add_argument("engine", choices=names())
    parser.add_argument("--target", required=True, metavar="MODEL", help="catalogue name, GGUF file or directory")
    parser.add_argument("--draft", metavar="MODEL", help="a draft model for it")
    parser.add_argument("--modes", metavar="MODE,MODE", help="what to audit besides plain (lookup,draft)")
    parser.add_argument("--gamma", type=int, default=3, help="drafted tokens a round (3)")
    parser.add_argument("--tokens", type=int, default=48, help="of each greedy answer (48)")
    parser.add_argument("--draws", type=int, default=2000, help="samples a mode, at most (2000)")
    parser.add_argument("--seconds", type=float, default=60, help="of sampling a mode, at most (60)")
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    parser.add_argument("--weights", default="auto", help="of Outpace's own target, see `outpace generate` (auto)")
    parser.add_argument("--peers", default=".peers", metavar="FOLDER", help="the environments of `make peers` (.peers)")
    options = parser.parse_args()
    try:
        outcomes = audit_engine(
            options.engine,
            resolve(options.target),
            resolve(options.draft) if options.draft else None,
            modes=options.modes.split(",") if options.modes else None,
            gamma=options.gamma,
            tokens=options.tokens,
            draws=options.draws,
            seconds=options.seconds,
            threads=options.threads,
            weights=options.weights,
            peers=options.peers,
        )
    except OutpaceError as error:
        print(f"outpace: error: {error}", file=sys.stderr)
        return 1
    print_table(outcomes)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
