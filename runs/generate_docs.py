"""Write the generated blocks of README.md and docs/ from the code, or with --check tell which are out of date.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; NAME is a key of ``blocks()``.
"""

import argparse
import importlib
import pkgutil
import re
import sys
from pathlib import Path

from outpace import commands, drafters, verify
from outpace.bench.tables import markdown
from outpace.catalogue import catalogue, drafts_for
from outpace.core.options import Option, options_of

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def blocks() -> dict[str, str]:
    """Every block by its name, as Markdown."""
    return {
        "commands": _commands(),
        "options": _options(),
        "drafters": _drafters(),
        "rules": _rules(),
        "models": _models(),
    }


def refreshed(text: str, known: dict[str, str]) -> str:
    """The page with its blocks as they should be. Raises KeyError for a block that nothing generates."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{known[match[2]]}\n\n{match[3]}", text)


def _names() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(commands.__path__) if not m.name.startswith("_")]


def _first(doc: str | None) -> str:
    """The first sentence or paragraph, in one line."""
    paragraph = " ".join((doc or "").strip().split("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", paragraph).replace("``", "`").replace("|", "\\|")


def _commands() -> str:
    rows = [("command", "")]
    rows += [(f"`outpace {n}`", _first(importlib.import_module(f"outpace.commands.{n}").__doc__)) for n in _names()]
    return markdown(rows)


def _options() -> str:
    """The options of every command, its actions' included."""
    parts = []
    for name in _names():
        module = importlib.import_module(f"outpace.commands.{name}")
        parser = argparse.ArgumentParser(prog=f"outpace {name}", add_help=False)
        module.add_arguments(parser)
        about = " ".join((module.__doc__ or "").split())
        parts.append(f"## outpace {name}\n\n{about}")
        for group in parser._action_groups:
            parts += _group(group)
    return "\n\n".join(parts)


def _group(group: argparse._ArgumentGroup) -> list[str]:
    rows = []
    parts = []
    for action in group._group_actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            rows += [(f"`{name}`", helps.get(name) or "") for name in action.choices]
            continue
        value = action.metavar or (",".join(map(str, action.choices)) if action.choices else action.dest.upper())
        shown = " ".join(value) if isinstance(value, tuple) else str(value)
        name = action.option_strings[-1] if action.option_strings else shown
        takes = f" {shown}" if action.option_strings and action.nargs != 0 else ""
        told = " ".join(((action.help or "") % {"default": action.default}).split())
        rows.append((f"`{name}{takes}`", told.replace("|", "\\|")))
    if rows:
        title = "" if group.title in ("options", "positional arguments") else f"**{group.title}**\n\n"
        parts.append(title + markdown([("option", ""), *rows]))
    return parts


def _listed(options: list[Option]) -> str:
    return ", ".join(f"`{option.name}` {option.default!r}" for option in options)


def _drafters() -> str:
    rows = [("drafter", "what it does", "draft model", "options")]
    for name in drafters.names():
        module = drafters.module(name)
        options = _listed(options_of(module.Config))
        rows.append((f"`{name}`", _first(module.__doc__), "yes" if drafters.needs_draft(name) else "no", options))
    return markdown(rows)


def _rules() -> str:
    rows = [("rule", "what it does", "lossless", "trees", "options")]
    for name in verify.names():
        module, rule = verify.module(name), verify.rule(name)
        rows.append(
            (
                f"`{name}`",
                _first(module.__doc__),
                "yes" if rule.LOSSLESS else "no",
                "yes" if rule.TREES else "no",
                _listed(verify.options(name)),
            )
        )
    return markdown(rows)


def _models() -> str:
    rows = [("name", "family", "what it is", "licence", "pairs with")]
    for one in catalogue():
        pairs = [f"draft `{one.draft}`"] if one.draft else []
        pairs += [f"drafts for `{target}`" for target in drafts_for(one.name)]
        rows.append((f"`{one.name}`", one.family, one.description, one.licence, ", ".join(pairs)))
    return markdown(rows)


def pages() -> list[Path]:
    """Pages that may hold blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Rewrite, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; the status is 1 when a page is stale")
    args = parser.parse_args()
    known, stale = blocks(), []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fresh = refreshed(text, known)
        if fresh != text:
            stale.append(page)
            if not args.check:
                page.write_text(fresh, encoding="utf-8")
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'out of date; `make docs` writes it anew' if args.check else 'written'}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
