"""What the table in docs/DESIGN.md says is enough to add something: here it is added, to a copy of the package."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.tiny_models import byte_level_tokenizer, tiny_config, tiny_weights, write_directory

import outpace

PACKAGE = Path(outpace.__file__).parent
ROOT = Path(__file__).parents[1]
HOW_TO = (ROOT / "docs" / "how-to" / "add-a-drafter.md").read_text(encoding="utf-8")

RULE = '''
"""Exact match, but at most ``most`` tokens a round."""

from dataclasses import dataclass

from ..core.types import Verdict
from . import match


@dataclass(frozen=True)
class Config:
    most: int = 2


class AtMost:
    LOSSLESS, TREES, NEEDS_DISTRIBUTIONS, SHARED_NOISE = True, True, False, True
    draw = staticmethod(match.draw)

    def __init__(self, config):
        self.most = config.most

    def verify(self, proposal, distributions, rng, base):
        found = match.verify(proposal, distributions, rng, base)
        if len(found.path) <= self.most:
            return found
        beyond = found.path[self.most]
        return Verdict(found.path[: self.most], proposal.tokens[beyond], "bonus")


create = AtMost
'''
FAMILY = '''
"""Llama by another name."""

from .family import Family
from .table import DECODER

FAMILY = Family(model_type="jovian", gguf="jove", gguf_pairs="neighbours", tensors=tuple(DECODER))
'''
# By what the table adds, and by file: the text of a new one, or what is written before certain lines of an old one.
ADDITIONS: dict[str, dict[str, str | dict[str, str]]] = {
    "a drafter": {"drafters/repeat_last.py": re.findall(r"^```python\n(.*?)^```", HOW_TO, re.DOTALL | re.MULTILINE)[0]},
    "an acceptance rule": {"verify/at_most.py": RULE},
    "a Llama-shaped family": {"families/jovian.py": FAMILY},
    "a sampling control": {
        "core/types.py": {
            "    seed: int | None = None\n": "    top_a: float = 0.0\n",
            '        _number("presence_penalty"': '        _number("top_a", self.top_a, 0, 1)\n',
        },
        "sampling/pipeline.py": {
            "        if fast is None:\n            return": (
                "        if params.top_a > 0:\n"
                "            probs = softmax(scores)\n"
                "            kept = np.flatnonzero(probs >= params.top_a * probs.max() ** 2)\n"
                "            scores, ids = scores[kept], kept if ids is None else ids[kept]\n"
            )
        },
        "commands/_sampling.py": {
            '    group.add_argument("--seed"': '    group.add_argument("--top-a", type=float, default=0.0)\n'
        },
        "serve/requests.py": {
            "    seed: Annotated[int": "    top_a: Annotated[float, Field(ge=0, le=1)] | None = None\n"
        },
    },
    "a loader option": {
        "core/load_options.py": {
            "    prior: Mapping": '    least_context: int | None = _flag(None, "refuse a shorter one", metavar="N")\n'
        },
        "engine/build.py": {
            "    drafting = draft if draft is None": (
                "    if chosen.least_context is not None and model.runtime.context < chosen.least_context:\n"
                '        raise ParameterError(f"its context is shorter than least_context {chosen.least_context}")\n'
            )
        },
    },
}


def add(package: Path, files: dict[str, str | dict[str, str]]) -> None:
    """Write new files and lines into a package."""
    for name, change in files.items():
        file = package / name
        if isinstance(change, str):
            assert not file.exists()
            file.write_text(change, encoding="utf-8")
            continue
        text = file.read_text(encoding="utf-8")
        for before, lines in change.items():
            assert text.count(before) == 1, f"{name} has no single line {before!r}"
            text = text.replace(before, lines + before)
        file.write_text(text, encoding="utf-8")


def differing(one: Path, other: Path) -> set[str]:
    """Files that only one of two packages has, or that are not the same in both."""
    names = {str(path.relative_to(room)) for room in (one, other) for path in room.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}  # fmt: skip
    return names - set(filecmp.cmpfiles(one, other, names, shallow=False)[0])


def table(page: str) -> dict[str, tuple[int, list[str]]]:
    """By what is added: how many files the page says it takes, and which."""
    rows = re.findall(r"^\| (an? [^|]+) \| (\d+) \| ([^|]+) \|$", page, re.MULTILINE)
    return {what: (int(count), re.findall(r"`([^`]+)`", files)) for what, count, files in rows}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All additions in one copy, used in one process: by kind what failed."""
    folder = tmp_path_factory.mktemp("additions")
    package = folder / "outpace"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for files in ADDITIONS.values():
        add(package, files)
    tokenizer = byte_level_tokenizer()
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    models = [
        write_directory(folder / name, config | {"model_type": name}, weights, tokenizer)
        for name in ("jovian", "llama")
    ]
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "helpers" / "use_additions.py", *models, folder],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("package") == str(package), "another copy was used"
    assert differing(PACKAGE, package) == {name for files in ADDITIONS.values() for name in files}
    return found


@pytest.mark.parametrize("what", ADDITIONS)
def test_what_is_added_works(what: str, used: dict[str, str]) -> None:
    assert used[what] == ""


def test_the_table_names_the_files_that_were_touched() -> None:
    said = table((ROOT / "docs" / "DESIGN.md").read_text(encoding="utf-8"))
    assert said.keys() == ADDITIONS.keys()
    for what, (count, files) in said.items():
        touched = ADDITIONS[what]
        assert len(touched) == count
        for name, file in zip(touched, files, strict=True):
            assert re.fullmatch(re.escape(file).replace("<name>", r"\w+"), name)


def test_a_difference_is_seen(tmp_path: Path) -> None:
    for room, texts in (("one", {"a": "1", "b": "2", "c": "3"}), ("other", {"a": "1", "b": "3", "d": "4"})):
        (tmp_path / room).mkdir()
        for name, text in texts.items():
            (tmp_path / room / name).write_text(text)
    assert differing(tmp_path / "one", tmp_path / "other") == {"b", "c", "d"}
