# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""vLLM's build for CPUs, in bf16: n-gram lookup, or a draft model. Its engine is stepped by hand, to time its steps.

It takes Hugging Face folders: a GGUF file is dequantized into one first.
"""

import os
import pathlib
import tempfile
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def folder_of(path, into):
    """The model as a folder of bf16 weights."""
    import torch
    import transformers

    path = pathlib.Path(path)
    if path.is_dir():
        return str(path)
    folder = pathlib.Path(into, path.stem)
    transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    ).save_pretrained(folder)
    return str(folder)


def load(settings):
    mode, gamma, threads = settings["mode"], settings["gamma"], settings["threads"]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    import vllm

    folder = tempfile.TemporaryDirectory()
    speculative = None
    if mode == "lookup":
        speculative = {
            "method": "ngram",
            "num_speculative_tokens": gamma,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
    elif mode == "draft":
        draft = folder_of(settings["draft"], folder.name)
        speculative = {"method": "draft_model", "model": draft, "num_speculative_tokens": gamma}
    elif mode != "plain":
        raise ValueError(f"mode {mode!r} is not among plain, lookup and draft")
    engine = vllm.LLM(
        model=folder_of(settings["target"], folder.name),
        dtype="bfloat16",
        max_model_len=settings.get("context", 4096),
        max_num_seqs=2,
        enforce_eager=True,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        speculative_config=speculative,
    ).llm_engine
    count = 0

    def generate(prompt, max_tokens, temperature, seeds, keep=folder):
        nonlocal count
        answers, timing = [], []
        for seed in seeds:
            params = vllm.SamplingParams(
                temperature=temperature, max_tokens=max_tokens, seed=seed if temperature > 0 else None, detokenize=False
            )
            start, first, tokens = time.perf_counter(), None, []
            count += 1
            engine.add_request(str(count), {"prompt_token_ids": prompt}, params)
            while engine.has_unfinished_requests():
                for item in engine.step():
                    tokens = list(item.outputs[0].token_ids)
                if tokens and first is None:
                    first = (len(tokens), time.perf_counter() - start)
            timing.append([*(first or (0, 0.0)), time.perf_counter() - start])
            answers.append(tokens)
        return {"tokens": answers, "drafted": None, "accepted": None, "timing": timing}

    return {"versions": {"vllm": vllm.__version__}, "numerics": "bf16"}, generate
