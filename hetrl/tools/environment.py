"""What `hetrl doctor` finds out: each package is really imported, each solver really solves.

Heavy packages are imported in a child process, so that one that crashes or hangs is a finding and not the end.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

IMPORT_TIMEOUT_SECONDS = 180
TOOL_TIMEOUT_SECONDS = 20

State = Literal["works", "missing", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    part
        What needs it: planning, solvers, kernels, sweeps, profile, runtime, accelerators.
    name
        The package, solver, program or device.
    state
        ``works``, ``missing`` (not installed) or ``broken`` (installed, and does not work).
    detail
        Its version, or what went wrong.
    fix
        What to do about it; empty if nothing needs doing.
    """

    part: str
    name: str
    state: State
    detail: str = ""
    fix: str = ""


def examine() -> list[Finding]:
    """Look at everything hetrl can use, the parts in the order a user needs them."""
    return [
        *(package("planning", name, "pip install hetrl") for name in ("numpy", "yaml", "jsonschema", "rich", "pulp")),
        *(solver(name, backend, fix) for name, (backend, fix) in SOLVERS.items()),
        *kernels(),
        package("sweeps", "numba", "optional: pip install 'hetrl[sweeps]'"),
        *(package("profile", name, "pip install 'hetrl[profile]'") for name in ("sklearn", "psutil", "torch")),
        torchvision(),
        *(package("runtime", name, _RUNTIME_FIX) for name in ("torch", "ray", "transformers", "vllm", "tensorboard")),
        *accelerators(),
    ]


_RUNTIME_FIX = (
    "with a GPU: pip install 'hetrl[ray]'; without one, in a checkout: "
    "pip install -r requirements/runtime-cpu.txt -e '.[profile]'"
)

# The statement that shows that a package works, where importing it does not.
_PROOF = {
    "numpy": "import numpy",
    "ray": "import ray",
    "sklearn": "import sklearn.linear_model",
    "tensorboard": "import tensorboard.summary",
    "torch": "import torch; torch.ones(2) @ torch.ones(2)",
    "transformers": "from transformers import LlamaForCausalLM",
    "vllm": "from vllm import LLM",
}
_DISTRIBUTION = {"yaml": "PyYAML", "pulp": "PuLP", "sklearn": "scikit-learn"}


def package(part: str, name: str, fix: str) -> Finding:
    """Import a package in a child process and report its version or the last line of its complaint."""
    if importlib.util.find_spec(name) is None:
        return Finding(part=part, name=name, state="missing", detail="not installed", fix=fix)
    complaint = _complaint(_PROOF.get(name, f"import {name}"))
    if complaint:
        if "torchvision::" in complaint:
            fix = _TORCHVISION_FIX
        return Finding(part=part, name=name, state="broken", detail=complaint, fix=fix)
    return Finding(part=part, name=name, state="works", detail=_version(name))


@functools.cache
def _complaint(statement: str) -> str:
    """Run a Python statement in a child process; return what went wrong in one line, or an empty string."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", statement],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=IMPORT_TIMEOUT_SECONDS,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"import did not end within {IMPORT_TIMEOUT_SECONDS} s"
    if child.returncode == 0:
        return ""
    lines = [line for line in child.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"import ended with exit code {child.returncode}"


def _version(name: str) -> str:
    distributions = importlib.metadata.packages_distributions().get(name, [_DISTRIBUTION.get(name, name)])
    return ", ".join(f"{each} {importlib.metadata.version(each)}" for each in dict.fromkeys(distributions))


_TORCHVISION_FIX = (
    "pip uninstall torchvision torchaudio torchcodec (hetrl uses none of them), or install through "
    "requirements/runtime-cpu.txt, which puts empty stand-ins in their place"
)


def torchvision() -> Finding:
    """Detect a torchvision built for another torch: transformers and vLLM then fail at import."""
    if importlib.util.find_spec("torchvision") is None:
        return Finding(part="runtime", name="torchvision", state="works", detail="absent, as it should be")
    complaint = _complaint("import torchvision")
    if complaint:
        detail = f"does not import beside this torch, and breaks transformers and vLLM: {complaint}"
        return Finding(part="runtime", name="torchvision", state="broken", detail=detail, fix=_TORCHVISION_FIX)
    return Finding(part="runtime", name="torchvision", state="works", detail=f"{_version('torchvision')}, fits torch")


SOLVERS = {
    "CBC": ("PULP_CBC_CMD", "pip install PuLP (it brings CBC)"),
    "HiGHS": ("HiGHS", "optional: pip install 'hetrl[highs]'"),
    "Gurobi": ("GUROBI", "optional: pip install gurobipy, and a license"),
}


# In a child process: HiGHS writes its banner to the terminal past Python's streams.
_SOLVE = """
import pulp
solver = pulp.getSolver({backend!r}, msg=False)
if not solver.available():
    raise SystemExit("not installed")
problem = pulp.LpProblem("doctor", pulp.LpMaximize)
x = pulp.LpVariable("x", lowBound=0, cat="Integer")
problem += x
problem += 2 * x <= 7
status = pulp.LpStatus[problem.solve(solver)]
if (status, x.value()) != ("Optimal", 3):
    raise SystemExit(f"solves max x, 2 x <= 7 to {{x.value()}} ({{status}})")
"""


def solver(name: str, backend: str, fix: str) -> Finding:
    """Let a solver solve: maximise x, integer, 2 x <= 7."""
    complaint = _complaint(_SOLVE.format(backend=backend))
    if not complaint:
        return Finding(part="solvers", name=name, state="works", detail="solves")
    state: State = "missing" if complaint == "not installed" else "broken"
    return Finding(part="solvers", name=name, state=state, detail=complaint, fix=fix)


def kernels() -> list[Finding]:
    """Report the compiled kernels and the compiler that can build them."""
    part, package = "kernels", "hetrl_kernels"
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        found = Finding(part=part, name=package, state="missing", detail="not installed", fix="pip install hetrl")
        return [found, compiler(needed=True)]
    folder = Path(next(iter(spec.submodule_search_locations)))
    findings = []
    not_built = False
    for source in sorted(folder.rglob("*.pyx")):
        module = ".".join((package, *source.relative_to(folder).with_suffix("").parts))
        complaint = _complaint(f"import {module}")
        not_built |= bool(complaint)
        fix = "install a C compiler and Python's headers, then pip install again (in a checkout: make venv)"
        findings.append(
            Finding(part=part, name=module, state="broken", detail=complaint, fix=fix)
            if complaint
            else Finding(part=part, name=module, state="works", detail="compiled")
        )
    if not findings:
        findings.append(Finding(part=part, name=package, state="works", detail="pure Python, nothing to compile"))
    return [*findings, compiler(needed=not_built)]


def compiler(*, needed: bool) -> Finding:
    """Report the C compiler; it matters only where kernels are not built yet."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    path = shutil.which(command)
    header = Path(sysconfig.get_path("include"), "Python.h")
    fix = "apt-get install gcc python3-dev, or the like"
    if path and header.is_file():
        return Finding(part="kernels", name="C compiler", state="works", detail=path)
    detail = f"no {command} on PATH" if not path else f"no {header}"
    if needed:
        return Finding(part="kernels", name="C compiler", state="missing", detail=detail, fix=fix)
    return Finding(part="kernels", name="C compiler", state="works", detail=f"{detail}; not needed, kernels are built")


def accelerators() -> list[Finding]:
    """Ask the vendors' own tools which devices this machine has."""
    return [_accelerator(*probe) for probe in ACCELERATORS]


def _accelerator(vendor: str, command: tuple[str, ...], count: Callable[[str], str]) -> Finding:
    part = "accelerators"
    if shutil.which(command[0]) is None:
        return Finding(part=part, name=vendor, state="missing", detail=f"no {command[0]} on PATH")
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TOOL_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding(part=part, name=vendor, state="broken", detail=f"{command[0]} does not answer")
    if child.returncode != 0:
        lines = (child.stderr or child.stdout).strip().splitlines()
        return Finding(part=part, name=vendor, state="broken", detail=lines[-1] if lines else f"{command[0]} failed")
    return Finding(part=part, name=vendor, state="works", detail=count(child.stdout))


def _nvidia(output: str) -> str:
    return "; ".join(line.strip() for line in output.splitlines() if line.strip())


def _first_lines(output: str) -> str:
    return "; ".join(line.strip() for line in output.splitlines()[:8] if line.strip())


ACCELERATORS: tuple[tuple[str, tuple[str, ...], Callable[[str], str]], ...] = (
    ("NVIDIA", ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"), _nvidia),
    ("AMD", ("rocm-smi", "--showproductname", "--csv"), _first_lines),
    ("AWS Neuron", ("neuron-ls",), _first_lines),
)
