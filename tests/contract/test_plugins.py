"""A drafter, a rule and a family of another package pass the batteries, and a broken one harms nothing but itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.tiny_models import byte_level_tokenizer, tiny_config, tiny_weights, write_directory

import outpace
from outpace import drafters, verify
from outpace.audit import enumerated, soak
from outpace.core.errors import ModelError, ParameterError, PluginError
from outpace.families import family

ROOT = Path(__file__).parents[2]
FILES = {
    "theirs/__init__.py": "",
    "theirs/echo.py": '''
"""The pending token again and again."""
from dataclasses import dataclass
from outpace.core.protocols import Requirements
from outpace.core.types import Distribution


@dataclass(frozen=True)
class Config:
    gamma: int = 2
    once: bool = False


class Echo:
    needs = ()

    def __init__(self, config):
        self.most = 1 if config.once else 99

    def begin(self, session): ...

    def propose(self, sessions, budgets):
        for session, budget in zip(sessions, budgets):
            node = -1
            for _ in range(min(budget, self.most)):
                node = session.draw(Distribution.point(session.pending), node)
        return [session.record.proposal() for session in sessions]

    def observe(self, sessions, verdicts, seen): ...
    def end(self, session): ...


def requires(config):
    return Requirements()


def create(config, parts):
    return Echo(config)
''',
    "theirs/keen.py": '''
"""Speculative sampling by another name (arXiv 2211.17192)."""
from dataclasses import dataclass
from outpace.verify import ratio


@dataclass(frozen=True)
class Config:
    patience: float = 0.5


class Keen:
    LOSSLESS, TREES, NEEDS_DISTRIBUTIONS, SHARED_NOISE = True, True, True, False
    draw, verify = staticmethod(ratio.draw), staticmethod(ratio.verify)

    def __init__(self, config):
        self.config = config


create = Keen
''',
    "theirs/venusian.py": """
from outpace.families.family import Family
from outpace.families.table import DECODER

FAMILY = Family(model_type="venusian", gguf="venus", gguf_pairs="halves", tensors=tuple(DECODER))
""",
    "theirs/raises.py": "raise RuntimeError('on purpose')",
    "theirs/half.py": "from theirs.echo import Config, create",
    "theirs-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n",
    "theirs-1.0.dist-info/entry_points.txt": """
[outpace.drafters]
echo = theirs.echo
raises = theirs.raises
half = theirs.half
lookup = theirs.echo
[outpace.rules]
keen = theirs.keen
raises = theirs.raises
[outpace.families]
venusian = theirs.venusian
marsian = theirs.venusian
raises = theirs.raises
""",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def installed(package, monkeypatch):
    monkeypatch.syspath_prepend(package)
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "theirs"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of their family."""
    tokenizer = byte_level_tokenizer()
    config = tiny_config("llama", tokenizer)
    return write_directory(
        tmp_path_factory.mktemp("model"), config | {"model_type": "venusian"}, tiny_weights(config), tokenizer
    )


def run(package: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_pass_the_contract_battery(package):
    arguments = ("pytest", "-q", "-p", "no:cacheprovider", "-k", "echo or keen", "tests/contract/test_drafters.py")
    assert run(package, *arguments, "tests/contract/test_rules.py").count(".") >= 18


def test_they_run_from_python(installed, model):
    engine = outpace.load(
        model, drafter="echo", accept="keen", gamma=3, drafter_options={"echo": {"once": True}},
        rule_options={"keen": {"patience": 1}},
    )  # fmt: skip
    result = engine.generate("hello", outpace.SamplingParams(max_tokens=6, ignore_eos=True))
    plain = outpace.load(model, drafter="none").generate("hello", outpace.SamplingParams(max_tokens=6, ignore_eos=True))
    assert result.token_ids == plain.token_ids and result.report.drafted == result.report.target_passes - 1


def test_they_run_from_the_command_line(package, model):
    where = ("outpace", "generate", "hello", "--raw", "--target", str(model), "--max-tokens", "3")
    run(package, *where, "--drafter", "echo", "--accept", "keen", "--echo-once")


def test_audit_takes_them(installed):
    [shape] = enumerated.registered()
    assert shape.name == "registered: echo" and "keen" in enumerated.enumerable()
    params = enumerated.PIPELINES["T 1"]
    assert enumerated.shape_distance(shape, verify.rule("keen"), params) < enumerated.SAME
    rules, names = soak.choices()
    assert "keen" in rules and "echo" in names
    cases = (number for number in range(10_000) if (one := soak.case(0, number)).drafter == "echo"
             and one.accept == "keen")  # fmt: skip
    assert soak.run_case(0, next(cases)) == []


def test_a_broken_one_is_listed_and_harms_nothing_but_itself(installed):
    for registry, kind in ((drafters, "drafter"), (verify, "acceptance rule"), (family, "family")):
        assert registry.broken()["raises"] == (
            f"the {kind} 'raises' of the distribution theirs cannot be imported: RuntimeError: on purpose"
        )
    assert set(drafters.broken()) == {"raises", "half", "lookup"} and "echo" in drafters.names()
    assert "outpace has one of that name itself" in drafters.broken()["lookup"]
    assert drafters.module("lookup").__name__ == "outpace.drafters.lookup"
    with pytest.raises(PluginError, match=r"'half' of the distribution theirs lacks requires\(config\)"):
        drafters.module("half")
    with pytest.raises(PluginError, match="'raises' of the distribution theirs"):
        verify.rule("raises")
    with pytest.raises(ParameterError, match=r"one of .*echo.*, not 'nobody' \(broken: half, lookup, raises\)"):
        drafters.module("nobody")
    with pytest.raises(ModelError, match="FAMILY whose model_type is 'marsian', not 'venusian'"):
        family.decoder_config({"model_type": "marsian"})
    assert set(family.families()) >= {"llama", "venusian"} and "marsian" not in family.families()
