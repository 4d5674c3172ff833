"""Microseconds of CPU time that distributions and acceptance cost at a vocabulary of 151,936, with the C kernels and
without.

python runs/sampling_cost.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from outpace.core.types import Distribution, Proposal, SamplingParams
from outpace.kernels.native import open_library
from outpace.kernels.sampling import Sampler
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource
from outpace.verify import match, ratio

VOCAB, REPEATS = 151_936, 25
SETTINGS = {
    "greedy": SamplingParams(),
    "temperature 1": SamplingParams(temperature=1.0),
    "top-k 40": SamplingParams(temperature=1.0, top_k=40),
    "top-p 0.95": SamplingParams(temperature=1.0, top_p=0.95),
    "top-k 40, top-p 0.95": SamplingParams(temperature=1.0, top_k=40, top_p=0.95),
    "min-p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
    "penalties": SamplingParams(temperature=1.0, presence_penalty=0.5, repetition_penalty=1.1, logit_bias={5: 3.0}),
}


def least(call: Callable[[], object]) -> float:
    """The shortest of some calls, in microseconds of this thread: what else runs on the machine counts less."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times) * 1e6


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(VOCAB, generator=generator) * 2.2
    row[torch.randperm(VOCAB, generator=generator)[:50]] += torch.rand(50, generator=generator) * 9 + 4
    prefix = torch.randint(VOCAB, (1000,), generator=generator).tolist()
    library = open_library()
    samplers = {"torch": None, **({"kernels": Sampler(library)} if library else {})}
    for way, sampler in samplers.items():
        for name, params in SETTINGS.items():
            pipeline = Pipeline(params, 100, sampler=sampler)
            print(f"{way:8} distribution, {name:24} {least(lambda p=pipeline: p.distribution(row, prefix)):8.0f} us")  # type: ignore[misc]
        pipeline, rng = Pipeline(SETTINGS["temperature 1"], sampler=sampler), KeyedRandomSource(1, sampler=sampler)
        noise = [torch.randn(VOCAB, generator=generator) for _ in range(5)]
        targets = [row + 0.3 * n for n in noise]

        def distributions(rows: Sequence[torch.Tensor], pipeline: Pipeline = pipeline) -> list[Distribution]:
            return [pipeline.distribution(logits, prefix) for logits in rows]

        for label, drafts in (("close drafts", targets[1:]), ("far drafts", noise[1:])):
            drawn = distributions(drafts)
            proposal = Proposal.chain([ratio.draw(q, rng, 3, i, i) for i, q in enumerate(drawn)], drawn)
            took = least(lambda p=proposal, c=rng, t=targets: ratio.verify(p, distributions(t), c, 3))  # type: ignore[misc]
            print(f"{way:8} ratio, 5 rows, {label:14} {took:8.0f} us")
        took = least(lambda p=pipeline, c=rng: match.draw(p.distribution(row, prefix), c, 3, 0, 0))  # type: ignore[misc]
        print(f"{way:8} match, a token at temperature 1 {took:8.0f} us")


if __name__ == "__main__":
    main()
