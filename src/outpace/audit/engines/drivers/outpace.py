# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""Outpace itself, through the same protocol as everybody else."""

import outpace
from outpace.core.types import SamplingParams


def load(settings):
    mode, accept = settings["mode"], "match"
    if "-" in mode:
        mode, accept = mode.split("-")
    if mode not in ("plain", "lookup", "draft"):
        raise ValueError(f"mode {mode!r} is not among plain, lookup and draft")
    engine = outpace.load(
        settings["target"],
        settings["draft"] if mode == "draft" else None,
        drafter={"plain": "none", "lookup": "lookup", "draft": "draft_model"}[mode],
        gamma=None if mode == "plain" else settings["gamma"],
        accept=accept,
        weights=settings.get("weights", "auto"),
        threads=settings["threads"],
    )

    def generate(prompt, max_tokens, temperature, seeds):
        answers, drafted, accepted = [], 0, 0
        for seed in seeds:
            params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
            result = engine.generate(prompt, params)
            answers.append(result.token_ids)
            drafted += result.report.drafted
            accepted += result.report.accepted
        return {"tokens": answers, "drafted": drafted, "accepted": accepted}

    float32 = engine.target.weights == "f32"
    ready = {"versions": {"outpace": outpace.__version__}, "numerics": "float32" if float32 else engine.target.weights}
    return ready, generate
