"""Everything but trained heads and the torch backend works where torch is not installed; nothing is imported early."""

import json
import subprocess
import sys

import pytest

from outpace import drafters
from outpace.kernels.native import available

# None in sys.modules is how Python says that a module does not exist: find_spec and import both see it.
BLOCKED = "import sys; sys.modules['torch'] = sys.modules['safetensors'] = None\n"
NEED_TORCH = {"eagle", "medusa"}
pytestmark = pytest.mark.skipif(not available(), reason="without the kernels torch is what runs models")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def outpace(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    """The commands one after the other in one process without torch; the status is the greatest."""
    run = f"from outpace.cli import main\nsys.exit(max(main(words) for words in {list(commands)!r}))"
    return python(BLOCKED + run)


def test_every_other_drafter_generates() -> None:
    words = ["generate", "def add(", "--target", "tiny", "--max-tokens", "4", "--drafter"]
    names = sorted(set(drafters.names()) - NEED_TORCH)
    draft = {name: ["--draft", "tiny-draft"] if drafters.needs_draft(name) else [] for name in names}
    done = outpace(*([*words, name, *draft[name]] for name in names))
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    "words", [*(["--drafter", name] for name in sorted(NEED_TORCH)), ["--backend", "torch"]], ids=" ".join
)
def test_what_needs_torch_says_how_to_get_it(words: list[str]) -> None:
    done = outpace(["generate", "hi", "--target", "tiny", *words])
    assert done.returncode == 1
    assert "needs torch, which is not installed: pip install 'outpace[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_audit_says_what_it_leaves_out() -> None:
    words = ["audit", "--quick", "--only", "soak", "--soak-cases", "6"]
    done = outpace(words)
    first, second, *_, verdict = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert first.startswith("skip  eagle: needs torch") and second.startswith("skip  medusa: needs torch")
    assert verdict.startswith("1 of 1 checks passed") and verdict.endswith("left out without torch: eagle, medusa")
    summary = json.loads(outpace([*words, "--json", "-"]).stdout)
    assert summary["passed"] and summary["skipped"] == ["eagle", "medusa"]


def test_the_enumeration_leaves_trained_heads_out() -> None:
    done = python(
        BLOCKED + "from outpace.audit.enumerated import SHAPES\nprint(*(shape.name for shape in SHAPES), sep='\\n')"
    )
    left = set(done.stdout.splitlines())
    assert "drawn chain of 1" in left and "Medusa" not in left and "EAGLE" not in left, done.stderr


@pytest.mark.parametrize(
    ("code", "late"),
    [
        ("import outpace", "torch tokenizers huggingface_hub llguidance gguf jinja2 tqdm fastapi"),
        (
            "from outpace.cli import main; main('generate hi --target tiny --max-tokens 1'.split())",
            "torch huggingface_hub llguidance gguf fastapi safetensors transformers",
        ),
    ],
    ids=["import outpace", "generate"],
)
def test_slow_packages_are_imported_where_they_are_used(code: str, late: str) -> None:
    """Keeps `import outpace` below 0.3 s and a first token below 1 s (docs/decisions/0005-torch-is-optional.md)."""
    done = python(f"import sys\n{code}\nprint('imported:', *({set(late.split())!r} & set(sys.modules)))")
    assert done.stdout.splitlines()[-1] == "imported:", done.stderr
