"""Prompts: the built-in ones and the layouts of others."""

from pathlib import Path

import pytest

from outpace.bench import speculation, workload
from outpace.core.errors import ParameterError

CATEGORIES = {"code", "edit", "chat", "summary", "translation", "maths", "json", "creative", "long"}


def test_every_category_is_there_with_two_or_three_prompts() -> None:
    prompts = workload.built_in()
    assert set(workload.categories(prompts)) == CATEGORIES
    counts = {c: sum(p.category == c for p in prompts) for c in CATEGORIES}
    assert set(counts.values()) <= {2, 3}
    assert len({p.id for p in prompts}) == len(prompts)


def test_tuning_prompts_are_none_of_those_that_are_quoted() -> None:
    quoted = {p.text for p in workload.built_in()}
    tuning = {p.text for p in workload.tuning()} | {text for texts in speculation.TUNING.values() for text in texts}
    assert len(tuning) > 6 and not quoted & tuning


def test_limit_keeps_the_first_of_each_category() -> None:
    kept = workload.load_prompts("built-in", 1)
    assert len(kept) == len(CATEGORIES) and all(p.id.endswith("-1") for p in kept)
    with pytest.raises(ParameterError, match="at least 1"):
        workload.load_prompts("built-in", 0)


def test_long_text_repeats_itself_for_a_seed_and_has_its_length() -> None:
    assert workload.long_text(500, 1) == workload.long_text(500, 1) != workload.long_text(500, 2)
    assert 450 < len(workload.long_text(500, 1).split()) < 700


def test_layouts_of_others(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text(
        '{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n\n'
        '{"question_id": 82, "task": "qa", "category": "x", "prompt": "Who?"}\n'
        '{"task_id": "HumanEval/3", "prompt": "def f():\\n", "entry_point": "f"}\n'
        '{"id": "a", "category": "c", "text": "Own."}\n',
        encoding="utf-8",
    )
    found = [(p.id, p.category, p.text, p.raw) for p in workload.load_prompts(str(file))]
    assert found == [
        ("81", "writing", "Write.", False),
        ("82", "qa", "Who?", False),
        ("HumanEval/3", "humaneval", "def f():\n", True),
        ("a", "c", "Own.", False),
    ]


@pytest.mark.parametrize("line", ["nonsense", '{"question": "?"}', '{"turns": []}', '{"text": " "}', "[1]"])
def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"text": "fine"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ParameterError, match="line 2"):
        workload.load_prompts(str(file))


def test_a_text_file_is_one_prompt(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("Roses", encoding="utf-8")
    assert [p.text for p in workload.load_prompts(str(tmp_path / "poem.txt"))] == ["Roses"]
    with pytest.raises(ParameterError, match="cannot be read"):
        workload.load_prompts(str(tmp_path / "missing.txt"))
