"""The compiled part: every .pyx below kernels/hetrl_kernels becomes one extension. All else is in pyproject.toml."""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

ROOT = Path(__file__).parent.resolve()
os.chdir(ROOT)  # the sources are named relative to this file

# HETRL_KERNEL_FLAGS="-O1 -g -fsanitize=address" or the like replaces the first; the second is not a matter of taste:
# without fused multiply-add equal formulas give equal bits, whatever the compiler makes of them.
COMPILE_ARGS = [*os.environ.get("HETRL_KERNEL_FLAGS", "-O3 -g0").split(), "-ffp-contract=off"]


class BuildKernels(build_ext):
    """Compiles on all cores, and names what is missing when the kernels cannot be compiled."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count()

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (BaseError, CompileError, LinkError, OSError) as error:
            raise SystemExit(
                f"\nhetrl: the kernel {ext.name} could not be compiled: {error}\n"
                "A C compiler and Python's headers are needed. On Debian and Ubuntu:\n"
                "    apt-get install gcc python3-dev\n"
                "Another compiler can be named with CC=/path/to/it.\n"
            ) from error


def kernel_extensions() -> list[Extension]:
    sources = sorted(Path("kernels", "hetrl_kernels").rglob("*.pyx"))
    if not sources:
        return []
    from Cython.Build import cythonize

    extensions = [
        Extension(
            ".".join(source.relative_to("kernels").with_suffix("").parts),
            [source.as_posix()],
            extra_compile_args=COMPILE_ARGS,
        )
        for source in sources
    ]
    return cythonize(extensions, build_dir="build/cython", include_path=["kernels"], language_level=3)


setup(ext_modules=kernel_extensions(), cmdclass={"build_ext": BuildKernels})
