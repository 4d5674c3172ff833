"""A damaged configuration is one clear error that names the file, never a traceback or a wrong model."""

import json
import shutil
from pathlib import Path

import pytest

from outpace.catalogue import resolve
from outpace.core.errors import ModelError
from outpace.families.rope import rotary_frequencies
from outpace.runtimes.loading import load_model

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "abc"),
        ("hidden_size", [1]),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 0),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", -1),
        ("rms_norm_eps", "x"),
        ("rms_norm_eps", -1),
        ("rope_theta", [1]),
        ("rope_theta", -5),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"type": "linear", "factor": 0}),
        ("rope_scaling", LLAMA3 | {"original_max_position_embeddings": 64}),
        ("rope_scaling", {"rope_type": "factors", "factors": [1.0]}),
        ("model_type", ["llama"]),
        ("model_type", "unheard-of"),
    ],
)
def test_impossible_values_name_the_file(tmp_path: Path, key: str, value: object) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(resolve("tiny-draft"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ModelError, match="damaged"):
        load_model(folder)


def test_frequency_factors_of_a_gguf_file_divide_each_frequency() -> None:
    plain, _ = rotary_frequencies({"rope_theta": 10000.0}, 8)
    scaling = {"rope_type": "factors", "factors": [1.0, 2.0, 4.0, 8.0]}
    scaled, factor = rotary_frequencies({"rope_theta": 10000.0, "rope_scaling": scaling}, 8)
    assert scaled == tuple(f / d for f, d in zip(plain, scaling["factors"], strict=True)) and factor == 1
