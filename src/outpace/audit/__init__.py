"""Proofs of losslessness that anyone can run: ``outpace audit``, and here as a library.

>>> from outpace.audit import Options, run
>>> all(check.passed for check in run(Options(quick=True, sections=("broken",))))
True
"""

from .checks import SECTIONS, Check, Options
from .run import run_audit

__all__ = ["SECTIONS", "Check", "Options", "run_audit"]
