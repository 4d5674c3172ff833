"""Shared by all tests: settings of hypothesis, and real models where they are on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from outpace import catalogue

# The same examples every time: a failure in CI is a failure here.
settings.register_profile("outpace", deadline=None, derandomize=True)
settings.load_profile("outpace")

# The models here are tiny: a second thread costs more in waiting than it computes.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cached_model() -> Callable[[str], Path]:
    """Path of a catalogue model; the test is skipped when it has not been pulled."""

    def find(name: str) -> Path:
        place = catalogue.path(name)
        if place is None:
            pytest.skip(f"{name} is not here; `outpace models pull {name}` fetches it")
        return place

    return find
