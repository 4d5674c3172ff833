# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""economize: its lookup and draft-model techniques on a transformers model in float32."""

import pathlib
import tempfile
import time

import economize
import torch
import transformers
from economize.techniques.draft_model import DraftModelConfig
from economize.techniques.lookup import LookupConfig


def read(path):
    """A model in float32, from a GGUF file or a directory."""
    path = pathlib.Path(path)
    if path.is_dir():
        return transformers.AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32).eval()
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
    ).eval()


def load(settings):
    torch.set_num_threads(settings["threads"])
    base, mode = read(settings["target"]), settings["mode"]
    folder = tempfile.TemporaryDirectory()
    if mode == "plain":
        model = economize.apply(base)
    elif mode == "lookup":
        model = economize.apply(base, LookupConfig())
    elif mode == "draft":
        draft = pathlib.Path(settings["draft"])
        if not draft.is_dir():  # economize takes a draft by its folder only
            read(draft).save_pretrained(folder.name)
            draft = folder.name
        model = economize.apply(base, DraftModelConfig(model=str(draft)))
    else:
        raise ValueError(f"mode {mode!r} is not among plain, lookup and draft")
    length = 1 if mode == "plain" else settings["gamma"] + 1
    ends = base.generation_config.eos_token_id
    first = []  # when the target's first pass ended

    def passed(*_):
        if not first:
            first.append(time.perf_counter())

    base.get_output_embeddings().register_forward_hook(passed)

    def generate(prompt, max_tokens, temperature, seeds, keep=folder):
        answers, drafted, accepted, timing = [], 0, 0, []
        for seed in seeds:
            if temperature > 0:
                decoding = economize.DecodeConfig(cycle_length=length, verifier="rejection")
                selector = economize.TopPSampler(temperature=temperature, seed=seed)
            else:
                decoding, selector = economize.DecodeConfig(cycle_length=length), None
            first.clear()
            start = time.perf_counter()
            result = model.decode(torch.tensor(prompt), max_tokens, decoding=decoding, selector=selector, stop=ends)
            seconds = time.perf_counter() - start
            answers.append(result.tokens.tolist())
            began = 1 + (result.acceptance[0][1] if len(result.acceptance) else 0)
            timing.append([began, first[0] - start if first else 0.0, seconds])
            drafted += sum(proposed for proposed, _ in result.acceptance)
            accepted += sum(taken for _, taken in result.acceptance)
        return {"tokens": answers, "drafted": drafted, "accepted": accepted, "timing": timing}

    versions = {module.__name__: module.__version__ for module in (economize, transformers, torch)}
    return {"versions": versions, "numerics": "float32"}, generate
