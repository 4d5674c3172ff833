"""Dependencies between rooms point one way (docs/DESIGN.md)."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "outpace"

MODELS = {"text", "families", "files", "runtimes", "catalogue"}
BELOW_DRAFTERS = {"core", "kernels", "sampling"} | MODELS
PARTS = BELOW_DRAFTERS | {"drafters", "verify"}
# What each room, or file that has a rule of its own, may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "core": set(),
    "kernels": {"core"},
    "sampling": {"core", "kernels"},
    "text": {"core"},
    "catalogue": {"core"},
    "families": {"core"},
    "files": {"core", "text", "families"},
    "runtimes": {"core", "kernels"} | MODELS,
    "verify": {"core"},
    "drafters": BELOW_DRAFTERS,
    "train": BELOW_DRAFTERS | {"drafters"},
    "control": {"core", "runtimes", "version"},
    "engine": BELOW_DRAFTERS | {"control"},
    "engine.loop": {"core"},
    "engine.build": PARTS | {"control"},
    "serve": {"core", "engine"},
    "audit": PARTS | {"engine", "control"},
    "bench": PARTS | {"engine", "control", "audit"},  # the audit drives other engines, and so does the bench
    "commands": PARTS | {"engine", "control", "train", "serve", "audit", "bench"},
    "cli": {"core", "commands"},
    "demo": {"core", "catalogue", "runtimes", "engine", "control", "bench", "commands"},
    "__init__": {"core", "engine", "version"},
    "__main__": {"cli"},
}


def imported_rooms(source: str, module: str, is_package: bool) -> set[str]:
    """Rooms of ours that a module imports, anywhere in it; ``module`` is its dotted name below outpace."""
    here = ["outpace", *module.split(".")]
    if not is_package:
        here.pop()
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            base = [*above, *(node.module.split(".") if node.module else [])]
            names.update(".".join([*base, alias.name]) for alias in node.names)
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "outpace" and len(part) > 1 and is_room(part[1])}


def is_room(name: str) -> bool:
    return name in ALLOWED or (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def violations(source: str, module: str, is_package: bool = False) -> set[str]:
    """Rooms that the module imports although it may not."""
    room = module.split(".")[0]
    return imported_rooms(source, module, is_package) - ALLOWED.get(module, ALLOWED[room]) - {room}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    names = path.relative_to(PACKAGE).with_suffix("").parts
    is_package = names[-1] == "__init__" and len(names) > 1
    module = ".".join(names[:-1] if is_package else names)
    assert not violations(path.read_text(encoding="utf-8"), module, is_package)


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("core.types", "from ..families import config", {"families"}),
        ("core.types", "from .. import families", {"families"}),
        ("engine.loop", "def late():\n    import outpace.drafters.none", {"drafters"}),
        ("engine.build", "from ..drafters import none\nfrom ..serve import app", {"serve"}),
        ("verify.match", "from outpace.sampling.random_source import KeyedRandomSource", {"sampling"}),
        ("families.llama", "from .blocks import mlp\nimport torch\nfrom ..core.types import Chunk", set()),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str, wrong: set[str]) -> None:
    assert violations(source, module) == wrong


def test_a_package_is_seen_from_its_own_place() -> None:
    assert violations("from ..serve import app\nfrom . import match", "verify", is_package=True) == {"serve"}
