"""Builds the optional C kernels; everything else about the package is in pyproject.toml.

The libraries are plain shared objects without Python or torch headers, so one wheel serves every Python 3 of a
platform. Without a working C compiler the package installs all the same; models then need torch (an extra).
"""

import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
KERNELS = runpy.run_path(str(HERE / "src/outpace/kernels/build.py"))


class BuildKernels(build_ext):
    """Compiles csrc/ with build.py instead of setuptools' own rules for Python extensions."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library's path, without the suffix that ties an extension to one Python."""
        package, _, variant = fullname.rpartition(".")
        return str(Path(*package.split("."), KERNELS["library_name"](variant.removeprefix("_kernels_"))))

    def run(self) -> None:
        """Builds every variant at once; a failure is told and leaves the package without kernels."""
        out = Path(self.get_ext_fullpath("outpace.kernels._kernels_plain")).resolve().parent
        try:
            KERNELS["build"](out)
        except (OSError, RuntimeError) as problem:
            print(f"outpace: no C kernels, so models need torch (outpace[torch]):\n{problem}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        """The libraries that exist."""
        return [path for path in super().get_outputs() if Path(path).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing to copy after an editable build: it compiles into the source tree."""
        return {}


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none-<platform>``."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(f"outpace.kernels._kernels_{variant}", sources=[], optional=True) for variant in KERNELS["variants"]()
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
