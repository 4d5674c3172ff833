"""List the models known by name, fetch one, or print where it lies."""

from __future__ import annotations

import argparse

from .. import catalogue
from ..core.errors import CatalogueError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``models``, ``models list``, ``models pull NAME ...``, ``models path NAME``."""
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="list the catalogue (also without an action)")
    pull = actions.add_parser("pull", help="fetch models and verify them; a broken download goes on where it was")
    pull.add_argument("names", nargs="+", metavar="NAME")
    path = actions.add_parser("path", help="print where a model lies")
    path.add_argument("name", metavar="NAME")


def run(args: argparse.Namespace) -> int:
    """Carry out the action; prints paths and the list to standard output, progress to standard error."""
    if args.action == "pull":
        for name in args.names:
            print(catalogue.pull(name))
    elif args.action == "path":
        place = catalogue.path(args.name)
        if place is None:
            raise CatalogueError(f"{args.name} is not here yet; `outpace models pull {args.name}` fetches it")
        print(place)
    else:
        print_models([_row(entry) for entry in catalogue.catalogue()])
    return 0


def print_models(rows: list[tuple[str, ...]]) -> None:
    """Print the catalogue's rows in aligned columns under a heading."""
    rows = [("NAME", "FAMILY", "SIZE", "LICENCE", "PAIRS WITH", "HERE"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(entry: catalogue.Entry) -> tuple[str, ...]:
    place = catalogue.path(entry.name)
    if entry.shipped and place:
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    else:
        size = entry.size
    pairs = [f"draft {entry.draft}"] if entry.draft else []
    pairs += [f"drafts for {target}" for target in catalogue.drafts_for(entry.name)]
    return (entry.name, entry.family, _bytes(size), entry.licence, ", ".join(pairs) or "-", "yes" if place else "no")


def _bytes(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
