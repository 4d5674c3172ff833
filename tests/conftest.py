"""Shared by all tests: settings of hypothesis, real models where they are on this machine, and files that need torch.

Where torch is not installed, a file that imports it at its head is left out, and the first lines of the run say so.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from outpace import catalogue
from outpace.core.torch_extra import has_torch

# The same examples every time: a failure in CI is a failure here.
settings.register_profile("outpace", deadline=None, derandomize=True)
settings.load_profile("outpace")

# The models here are tiny: a second thread costs more in waiting than it computes.
with suppress(ImportError):
    import torch

    torch.set_num_threads(1)

_IMPORTS_TORCH = re.compile(r"^(import|from) torch\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """True: left out. None: pytest decides."""
    if has_torch() or collection_path.suffix != ".py":
        return None
    return True if _IMPORTS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_report_header() -> list[str]:
    return [] if has_torch() else ["torch is not installed: the files that import it are left out"]


@pytest.fixture(scope="session")
def cached_model() -> Callable[[str], Path]:
    """Path of a catalogue model; the test is skipped when it has not been pulled."""

    def find(name: str) -> Path:
        place = catalogue.path(name)
        if place is None:
            pytest.skip(f"{name} is not here; `outpace models pull {name}` fetches it")
        return place

    return find
