"""Code and pages use the field's terms (docs/glossary.md): no private word comes back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each private word, and what to write instead. Old entries of the log, the changelog and stored results keep theirs.
INSTEAD = {
    r"laws?": "distribution",
    r"coins?": "random source, random draw",
    r"beginnings": "prefix cache",
    r"believed": "prior",
    r"stood": "accepted",
    r"ruled": "verdicts",
    r"guesses": "drafts",
    r"Prices": "CostModel",
    r"asked\s+for\s+ahead": "prefetched",
    r"carve\w*": "scratch layout",
    r"meet(?=\s*\()": "barrier",
    r"boss|junior": "target, drafter",
}
PRIVATE = re.compile(r"(?<![A-Za-z])(?:" + "|".join(f"(?:{word})" for word in INSTEAD) + r")(?![A-Za-z])")
ALLOWED = ("Laplace's law", "stood still")  # phrases in which such a word is a term of the field
OLD = ("docs/log.md", "docs/results/bench.html")  # what was written then
TEXT = {".py", ".c", ".h", ".js", ".html", ".css", ".md", ".svg"}
FILES = sorted(
    path
    for room in ("src", "docs")
    for path in (ROOT / room).rglob("*")
    if path.suffix in TEXT and str(path.relative_to(ROOT)) not in OLD
)


def private_words(text: str) -> list[str]:
    """Every private word of a text, with its line."""
    for phrase in ALLOWED:
        text = text.replace(phrase, " " * len(phrase))
    return [f"line {text.count(chr(10), 0, found.start()) + 1}: {found[0]}" for found in PRIVATE.finditer(text)]


@pytest.mark.parametrize("path", [ROOT / "README.md", *FILES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_private_words(path: Path) -> None:
    assert private_words(path.read_text(encoding="utf-8")) == []


def test_a_private_word_is_found_and_parts_of_words_are_not() -> None:
    text = "the lawn and the flaw\ndrafts that stood\nself._coins\nmeet (t)\nLaplace's law\nunderstood, priced"
    assert private_words(text) == ["line 2: stood", "line 3: coins", "line 4: meet"]
