"""A progress bar on standard error. tqdm takes a tenth of a second to import, so only where a bar is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(label: str, total: int, unit: str, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """What moves the bar by a number of units ("B" for bytes, or "tensor"); it moves nothing unless ``shown``."""
    if not shown:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=label, unit=unit, unit_scale=unit == "B", leave=False) as bar:
        yield bar.update
