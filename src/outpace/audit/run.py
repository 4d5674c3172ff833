"""All sections one after the other."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from time import perf_counter

from ..catalogue import resolve
from ..core.errors import ParameterError
from ..runtimes.loading import load_model
from .checks import SECTIONS, Check, Options

_MODULES = {"exact": "enumerated", "broken": "caught"}  # those not named like their section
_ON_MODELS = {"equality", "statistical", "soak"}


def run_audit(options: Options) -> Iterator[Check]:
    """The checks of the sections asked for, as they are done. A section that raises is a failed check.
    Raises ParameterError for an unknown section."""
    for section in options.sections:
        if section not in SECTIONS:
            raise ParameterError(f"a section must be one of {', '.join(SECTIONS)}, not {section!r}")
    if options.target is None and _ON_MODELS & set(options.sections):
        tiny, draft = (load_model(resolve(name), weights="f32", threads=1) for name in ("tiny", "tiny-draft"))
        options = dataclasses.replace(options, target=tiny, draft=draft)
    for section in options.sections:
        checks = importlib.import_module(f"{__package__}.{_MODULES.get(section, section)}").checks(options)
        start = perf_counter()
        try:
            for check in checks:
                yield dataclasses.replace(check, seconds=round(perf_counter() - start, 3))
                start = perf_counter()
        except Exception as error:  # what breaks the code that is audited must not pass for an audit that passed
            seconds = round(perf_counter() - start, 3)
            yield Check(section, "the section ended early", False, f"{type(error).__name__}: {error}", {}, seconds)
