# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""Hugging Face transformers: ``generate`` with prompt lookup, or with an assistant model, in float32.

Drafted tokens are counted from outside: the rows of the target's passes beyond those that plain decoding needs.
"""

import pathlib
import time

import torch
import transformers


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


class Rows:
    """Counts the rows and the passes of a model."""

    def __init__(self, model):
        self.rows = self.passes = 0
        model.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, module, arguments, named):
        ids = named.get("input_ids", arguments[0] if arguments else None)
        if ids is None:
            ids = named["inputs_embeds"]
        self.rows += ids.shape[1]
        self.passes += 1


class Watch:
    """A streamer that notes how many tokens came first, and when."""

    def __init__(self):
        self.first, self.prompt, self.start = None, True, time.perf_counter()

    def put(self, tokens):
        if not self.prompt and self.first is None:
            self.first = [tokens.numel(), time.perf_counter() - self.start]
        self.prompt = False

    def end(self):
        pass


def load(settings):
    torch.set_num_threads(settings["threads"])
    target, mode, gamma = read(settings["target"]), settings["mode"], settings["gamma"]
    options = {}
    if mode == "lookup":
        options["prompt_lookup_num_tokens"] = gamma
    elif mode == "draft":
        assistant = read(settings["draft"])
        assistant.generation_config.num_assistant_tokens = gamma
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        options["assistant_model"] = assistant
    elif mode != "plain":
        raise ValueError(f"mode {mode!r} is not among plain, lookup and draft")
    ends = target.generation_config.eos_token_id
    watch = Rows(target)

    def generate(prompt, max_tokens, temperature, seeds):
        config = transformers.GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0 if temperature > 0 else None,
            top_p=1.0 if temperature > 0 else None,
            eos_token_id=ends,
            pad_token_id=0,
        )
        ids = torch.tensor([prompt])
        answers, drafted, timing = [], 0, []
        with torch.inference_mode():
            for seed in seeds:
                torch.manual_seed(seed)
                watch.rows = watch.passes = 0
                clock = Watch()
                out = target.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock, **options
                )
                timing.append([*(clock.first or (0, 0.0)), time.perf_counter() - clock.start])
                answers.append(out[0, len(prompt) :].tolist())
                drafted += watch.rows - len(prompt) - (watch.passes - 1)
        return {"tokens": answers, "drafted": drafted, "accepted": None, "timing": timing}

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return {"versions": versions, "numerics": "float32"}, generate
