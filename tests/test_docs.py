"""The documentation agrees with the code: links, examples, commands and generated blocks."""

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from outpace import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS_MORE = ("openai", "fastapi")  # packages that an example is about, and that are no dependency of ours


def broken_links(text: str, place: Path) -> list[str]:
    """Targets of inline links that are neither addresses nor files below ``place``."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)  # code is not links
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    local = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    return [target for target in local if not (place / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page.read_text(encoding="utf-8"), page.parent) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](README.md) [b](missing.md#part) [c](https://example.org) [d](#here) `[e](code.md)`"
    assert broken_links(text, ROOT) == ["missing.md"]


def examples(text: str) -> list[str]:
    """Python blocks that stand by themselves: those that import what they use."""
    blocks = [code for language, code in FENCE.findall(text) if language == "python"]
    whole = [code for code in blocks if re.search(r"^(import|from) outpace", code, re.MULTILINE)]
    return [code for code in whole if not any(f"import {name}" in code for name in NEEDS_MORE)]


def example_params() -> list[object]:
    found = [(page, code) for page in PAGES for code in examples(page.read_text(encoding="utf-8"))]
    return [pytest.param(code, id=f"{page.relative_to(ROOT)}-{i}") for i, (page, code) in enumerate(found)]


@pytest.mark.parametrize("code", example_params())
def test_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "example", "exec"), {"__name__": "example"})


def commands(text: str) -> list[str]:
    """Lines of shell blocks that call ``outpace``, without comments, pipes and redirections."""
    found = []
    for language, code in FENCE.findall(text):
        if language in ("", "sh", "bash", "shell", "console"):
            for line in code.replace("\\\n", " ").splitlines():
                match = re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?outpace ([^#|<>;&]+)", line)
                if match:
                    found.append(match[1].strip())
    return found


def test_documented_commands_are_understood() -> None:
    """Every option on every page exists; nothing is run."""
    lines = {(page, line) for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
    assert len(lines) > 15
    wrong = []
    for page, line in sorted(lines):
        words = [word for word in shlex.split(line) if word != "..."] if '"..."' not in line else shlex.split(line)
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                cli._parser(words).parse_args(words)
            except SystemExit as stop:
                if stop.code:
                    wrong.append(f"{page.relative_to(ROOT)}: outpace {line}: {said.getvalue().splitlines()[-1]}")
    assert wrong == []


def test_commands_are_found() -> None:
    shell = "```\noutpace bench --limit 1   # why\n.venv/bin/outpace models | head\nmake bench\n```\n"
    text = shell + "```python\noutpace x\n```"
    assert commands(text) == ["bench --limit 1", "models"]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "runs" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_blocks_are_up_to_date() -> None:
    """`make docs` writes them anew."""
    generate = generator()
    known = generate.blocks()
    used = [name for page in PAGES for name in re.findall(r"<!-- generated: ([\w-]+)", page.read_text("utf-8"))]
    assert set(used) == set(known)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert generate.refreshed(text, known) == text, f"{page} is out of date: run `make docs`"


def test_a_stale_block_is_rewritten_and_an_unknown_one_refused() -> None:
    generate = generator()
    text = "a\n<!-- generated: rules -->\nold\n<!-- end -->\nb\n"
    assert generate.refreshed(text, {"rules": "NEW"}) == "a\n<!-- generated: rules -->\n\nNEW\n\n<!-- end -->\nb\n"
    with pytest.raises(KeyError):
        generate.refreshed("<!-- generated: nothing -->\n<!-- end -->", {})


def names_in_code(page: str) -> list[str]:
    """The last cells of the rows of a page's tables, where they hold a dotted path of ours."""
    return re.findall(r"`(outpace(?:\.\w+)+)` \|$", page, re.MULTILINE)


def exists(path: str) -> bool:
    """Whether a module, an attribute or an annotated field has this dotted path."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, name, None)
        return True
    return False


GLOSSARY = names_in_code((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(set(GLOSSARY)))
def test_names_of_the_glossary_exist(path: str) -> None:
    assert exists(path)


def test_a_name_that_does_not_exist_is_found() -> None:
    page = "| a | b | `outpace.core.types.Proposal` |\n| a | b | `outpace.core.types.Nothing` |\n"
    assert [exists(path) for path in names_in_code(page)] == [True, False]
    assert len(GLOSSARY) > 30


DESIGN = (ROOT / "docs" / "DESIGN.md").read_text(encoding="utf-8")


def missing(page: str) -> list[str]:
    """Files, folders and classes that a page names and that do not exist. Files may lie anywhere in the package."""
    names = re.findall(r"`([\w./]+\.py|\w+/|[A-Z]\w*[a-z]\w*(?:\.\w+)?)(?:\([\w, ]*\))?`", page)
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    found = {
        name
        for name in names
        if (ROOT / name).exists()
        or any((ROOT / "src").rglob(name.rstrip("/")))
        or ("/" not in name and all(re.search(rf"(class|def) {part}\b", sources) for part in name.split(".")))
    }
    return sorted(set(names) - found)


def test_what_the_design_names_exists() -> None:
    assert missing(DESIGN) == []
    assert missing("`core/none.py` `nowhere/` `Nothing` `Proposal(tokens)` `KVCache.nowhere`, `core/`") == [
        "KVCache.nowhere",
        "Nothing",
        "core/none.py",
        "nowhere/",
    ]
