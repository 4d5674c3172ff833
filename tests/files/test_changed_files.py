"""A model file that is truncated or overwritten while it is loaded or served: the right tokens, or a ModelError.

Each backend runs in a process of its own, since what must not happen ends the process (SIGBUS)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outpace.core.torch_extra import has_torch

SCRIPT = """
import os, sys
from pathlib import Path

from tests.helpers.tiny_models import byte_level_tokenizer, tiny_config, tiny_weights, write_directory, write_gguf

import outpace
from outpace.core.errors import ModelError
from outpace.files import tensors

backend, place = sys.argv[1], Path(sys.argv[2])
tokenizer = byte_level_tokenizer()
config = tiny_config("llama", tokenizer, tied=False)
PARAMS = outpace.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ["the dog", "def add", "0123456789 abcdefghij"]


def written(name, seed):
    weights = tiny_weights(config, seed)
    if name.endswith("gguf"):
        path = write_gguf(place / name, config, weights, tokenizer)
        return path, path
    folder = write_directory(place / name, config, weights, tokenizer)
    return folder, next(folder.glob("*.safetensors"))


def truncated(file):
    os.truncate(file, 0)


def halved(file):
    os.truncate(file, file.stat().st_size // 2)


def overwritten(file):
    with open(file, "r+b") as out:  # the same inode and size, other values
        out.write(os.urandom(file.stat().st_size))


def load(target, draft):
    return outpace.load(target, draft, backend=backend, weights="f32", draft_weights="f32", threads=1, gamma=3)


for ending in ("gguf", "folder"):
    expected = load(written("a." + ending, 0)[0], written("b." + ending, 1)[0]).generate(PROMPTS, PARAMS)
    for damage in (truncated, halved, overwritten):
        (target, target_file), (draft, draft_file) = written("t." + ending, 0), written("d." + ending, 1)
        engine = load(target, draft)
        damage(target_file)
        damage(draft_file)
        got = engine.generate(PROMPTS, PARAMS)
        assert [r.token_ids for r in got] == [r.token_ids for r in expected], (ending, damage.__name__)
        assert [r.report.accepted for r in got] == [r.report.accepted for r in expected], "the draft changed"
        del engine
        # The same while the matrices are read, one after the other.
        target, target_file = written("t." + ending, 0)
        method = "raw" if backend == "native" else "load"
        real, calls = getattr(tensors.StoredTensor, method), []

        def read(tensor, *args):
            found = real(tensor, *args)
            calls.append(tensor)
            if len(calls) == 4:
                damage(target_file)
            return found

        setattr(tensors.StoredTensor, method, read)
        try:
            outpace.load(target, backend=backend, weights="f32", threads=1)
        except ModelError as error:
            assert target_file.name in str(error) and "changed while it was loaded" in str(error), error
        else:
            raise SystemExit(f"{ending}: a file that was {damage.__name__} half-way was loaded")
        finally:
            setattr(tensors.StoredTensor, method, real)
print("all right")
"""


@pytest.mark.parametrize("backend", ["native", *(["torch"] if has_torch() else [])])
def test_truncated_or_overwritten(tmp_path: Path, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, backend, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("all right\n"), (done.returncode, done.stdout, done.stderr)
