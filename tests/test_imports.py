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
    "drafters.layer_skip.choice": BELOW_DRAFTERS | {"control"},  # it weighs what passes over more rows cost
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


def imported_names(source: str, module: str, is_package: bool) -> set[str]:
    """Dotted names that a module imports, anywhere in it, also for type checkers only; ``module`` is its own below
    outpace."""
    here = ["outpace", *module.split(".")] if module else ["outpace"]
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
    return names


def imported_rooms(source: str, module: str, is_package: bool) -> set[str]:
    """Rooms of ours that a module imports."""
    parts = [name.split(".") for name in imported_names(source, module, is_package)]
    return {part[1] for part in parts if part[0] == "outpace" and len(part) > 1 and is_room(part[1])}


def is_room(name: str) -> bool:
    return name in ALLOWED or (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def violations(source: str, module: str, is_package: bool = False) -> set[str]:
    """Rooms that the module imports although it may not."""
    room = module.split(".")[0]
    return imported_rooms(source, module, is_package) - ALLOWED.get(module, ALLOWED[room]) - {room}


def package_modules(package: Path) -> dict[str, tuple[str, bool]]:
    """By dotted name below the package, "" for itself: the source, and whether it is an ``__init__``."""
    found = {}
    for path in package.rglob("*.py"):
        *above, last = path.relative_to(package).with_suffix("").parts
        is_package = last == "__init__"
        name = ".".join(above if is_package else [*above, last])
        found[name] = path.read_text(encoding="utf-8"), is_package
    return found


def import_cycles(modules: dict[str, tuple[str, bool]]) -> set[str]:
    """Modules that import each other, directly or through others."""
    known = {f"outpace.{name}".rstrip("."): name for name in modules}
    graph: dict[str, set[str]] = {}
    for name, (source, is_package) in modules.items():
        graph[name] = set()
        for imported in imported_names(source, name, is_package):
            whole = imported if imported in known else imported.rpartition(".")[0]  # a module, or a name out of one
            if known.get(whole, name) != name:
                graph[name].add(known[whole])
    while leaves := {name for name, others in graph.items() if not others & graph.keys()}:
        for name in leaves:
            del graph[name]
    roots = True
    while roots:  # those that only lead into a cycle
        roots = graph.keys() - set().union(*graph.values())
        for name in roots:
            del graph[name]
    return set(graph)


def test_no_two_modules_import_each_other() -> None:
    assert not import_cycles(package_modules(PACKAGE))


def test_a_cycle_is_seen() -> None:
    modules = {
        "": ("from .engine.engine import Engine", True),
        "engine.engine": ("from .stream import Stream", False),
        "engine.stream": ("if TYPE_CHECKING:\n    from .engine import Engine", False),
        "cli": ("from . import __version__", False),
    }
    assert import_cycles(modules) == {"engine.engine", "engine.stream"}
    assert import_cycles(modules | {"engine.stream": ("from .. import __version__", False)}) == modules.keys() - {"cli"}


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
