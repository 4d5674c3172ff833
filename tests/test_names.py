"""No two things of the package share a name: no two public classes or functions at the top of its modules."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "outpace"
# What a protocol asks of every module of a room (core/protocols.py, audit/run.py, commands/__init__.py) or of a script.
DEMANDED = {
    "Config", "create", "requires", "options",  # drafters and rules, and their rooms
    "draw", "verify", "residual",  # rules
    "checks",  # sections of the audit
    "add_arguments", "run",  # commands
    "main",
}  # fmt: skip
STANDALONE = "audit/engines/drivers"  # scripts that run in other engines' environments


def public_names(source: str) -> list[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(source).body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def test_no_two_things_share_a_name() -> None:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        for name in public_names(path.read_text(encoding="utf-8")) if not where.startswith(STANDALONE) else ():
            found[name].append(where)
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in DEMANDED} == {}


def test_names_are_found() -> None:
    source = (
        "class Plan: ...\ndef measure(): ...\ndef _own(): ...\nif True:\n    def inner(): ...\nasync def wait(): ..."
    )
    assert public_names(source) == ["Plan", "measure", "wait"]
