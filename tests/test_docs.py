"""Every relative link of the documentation leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


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
