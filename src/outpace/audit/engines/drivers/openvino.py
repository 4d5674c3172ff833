# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""OpenVINO GenAI's LLMPipeline on the CPU: prompt lookup, or a draft model.

It reads GGUF files; a draft model must be its own exported format, which this driver makes first.
"""

import pathlib
import shutil
import tempfile
import time

import numpy
import openvino
import openvino_genai as genai


class Watch(genai.StreamerBase):
    """Notes how many tokens came first, and when."""

    def __init__(self):
        super().__init__()
        self.first, self.start = None, time.perf_counter()

    def write(self, tokens):
        if self.first is None:
            self.first = [1 if isinstance(tokens, int) else len(tokens), time.perf_counter() - self.start]
        return genai.StreamingStatus.RUNNING

    def end(self):
        pass


def load(settings):
    mode, gamma = settings["mode"], settings["gamma"]
    properties = {"INFERENCE_NUM_THREADS": settings["threads"]}
    folder = tempfile.TemporaryDirectory()
    more, options = {}, {}
    if mode == "lookup":
        more["prompt_lookup"] = True
        options = {"num_assistant_tokens": gamma, "max_ngram_size": 3}
    elif mode == "draft":
        copy = pathlib.Path(folder.name) / "draft.gguf"
        shutil.copy(settings["draft"], copy)
        genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True, **properties)
        more["draft_model"] = genai.draft_model(folder.name, "CPU", **properties)
        options = {"num_assistant_tokens": gamma}
    elif mode != "plain":
        raise ValueError(f"mode {mode!r} is not among plain, lookup and draft")
    # Plain decoding through the same backend as the other two, so that the same arithmetic is compared.
    more.setdefault("scheduler_config", genai.SchedulerConfig())
    pipeline = genai.LLMPipeline(settings["target"], "CPU", **properties, **more)
    ends = set(pipeline.get_generation_config().stop_token_ids)

    def generate(prompt, max_tokens, temperature, seeds, keep=folder):
        answers, accepted, timing = [], 0, []
        for seed in seeds:
            config = genai.GenerationConfig()
            config.max_new_tokens, config.apply_chat_template = max_tokens, False
            config.stop_token_ids = ends
            if temperature > 0:
                config.do_sample, config.temperature, config.rng_seed = True, temperature, seed
                config.top_k, config.top_p = 1 << 30, 1.0
            for key, value in options.items():
                setattr(config, key, value)
            watch = Watch()
            result = pipeline.generate(openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)), config, watch)
            timing.append([*(watch.first or (0, 0.0)), time.perf_counter() - watch.start])
            answers.append([int(token) for token in result.tokens[0]])
            metrics = getattr(result, "extended_perf_metrics", None)
            counted = metrics is not None and hasattr(metrics, "get_num_accepted_tokens")
            accepted = accepted + metrics.get_num_accepted_tokens() if counted and accepted is not None else None
        return {"tokens": answers, "drafted": None, "accepted": accepted, "timing": timing}

    return {"versions": {"openvino-genai": genai.__version__}, "numerics": "as it rounds the file"}, generate
