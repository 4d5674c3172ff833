"""The scripts of runs/: each has its line in the README, compiles, and imports only what there is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import outpace

RUNS = Path(__file__).parents[1] / "runs"
PACKAGE = Path(outpace.__file__).parent
SCRIPTS = sorted(RUNS.glob("*.py"))


@cache
def names_in(path: Path) -> set[str]:
    """What may be imported from a module or package, by its source: nothing of it runs."""
    found: set[str] = {one.stem for one in path.iterdir()} if path.is_dir() else set()
    source = path / "__init__.py" if path.is_dir() else path
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_every_script_has_its_line():
    rows = re.findall(r"^\| `([a-z_]+\.py)` \|", (RUNS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == [path.name for path in SCRIPTS]
    assert {path.name for path in RUNS.iterdir() if path.is_file()} == {*rows, "README.md"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_it_compiles_and_imports_what_there_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    compile(tree, str(path), "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "outpace":
            place = PACKAGE.joinpath(*node.module.split(".")[1:])
            place = place if place.is_dir() else place.with_suffix(".py")
            assert {one.name for one in node.names} <= names_in(place), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (RUNS / f"{node.module}.py").exists():
            assert {one.name for one in node.names} <= names_in(RUNS / f"{node.module}.py"), ast.unparse(node)
