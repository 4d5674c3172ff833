# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""llama.cpp's own server, run inside this process by the package xllamacpp, spoken to in token ids.

Modes: plain; lookup (ngram-simple on matches of 2 tokens, or of as many as the setting ``match`` says); draft
(draft-simple); draft-probabilistic (the same with the server's rejection sampling instead of comparing with the
sampled token).
"""

import http.client
import json
import urllib.parse

import xllamacpp

KINDS = xllamacpp.common_speculative_type


def load(settings):
    mode, gamma = settings["mode"], settings["gamma"]
    params = xllamacpp.CommonParams()
    params.model.path = settings["target"]
    params.n_ctx, params.n_parallel, params.cache_ram_mib = settings.get("context", 2048), 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.port, params.warmup, params.verbosity = 0, False, 0
    speculative = params.speculative
    if mode == "lookup":
        speculative.types = [KINDS.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = settings.get("match", 2), gamma
    elif mode.startswith("draft"):
        speculative.types = [KINDS.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = speculative.draft
        draft.mparams.path, draft.n_max = settings["draft"], gamma
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = settings["threads"]
        draft.probabilistic = mode == "draft-probabilistic"
    elif mode != "plain":
        raise ValueError(f"mode {mode!r} is not among plain, lookup, draft and draft-probabilistic")
    server = xllamacpp.Server(params)
    address = urllib.parse.urlsplit(server.listening_address)

    def complete(body):
        # A connection each: the server closes one that was idle for some seconds.
        connection = http.client.HTTPConnection(address.hostname, address.port)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"the server answered {reply.status}: {text[:200]!r}")
        return json.loads(text)

    def generate(prompt, max_tokens, temperature, seeds, keep=server):
        answers, drafted, accepted, timing = [], 0, 0, []
        for seed in seeds:
            body = {
                "prompt": prompt,
                "n_predict": max_tokens,
                "temperature": temperature,
                "samplers": ["temperature"],  # at 0 it keeps the likeliest only
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "repeat_penalty": 1.0,
                "seed": seed,
                "cache_prompt": temperature > 0,  # equality needs the same passes each time, a distribution does not
                "return_tokens": True,
            }
            reply = complete(body)
            answers.append(reply["tokens"])
            spent = reply["timings"]
            timing.append([1, spent["prompt_ms"] / 1e3, (spent["prompt_ms"] + spent["predicted_ms"]) / 1e3])
            drafted += reply["timings"].get("draft_n", 0)
            accepted += reply["timings"].get("draft_n_accepted", 0)
        return {"tokens": answers, "drafted": drafted, "accepted": accepted, "timing": timing}

    return {"versions": {"xllamacpp": xllamacpp.__version__}, "numerics": "as in the file"}, generate
