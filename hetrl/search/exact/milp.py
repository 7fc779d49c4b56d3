"""The certificate's integer program: choose columns that cover every task, fit into the nodes, and make the best step.

Phase rows hold the relaxed step; one row per combination whose relaxed step is shorter than the optimum lifts it to
what the combination really takes. PuLP is imported here only.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from hetrl.errors import Problem, SpecError
from hetrl.search.exact.result import CertificateColumn, Combination, NodeClass

UNITS = 10_000
"""The optimum in the program's units of time."""
MIP_SOLVERS = ("cbc", "highs", "gurobi")
CHOSEN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MipAnswer:
    """What an integer solver says: its status, objective in the program's units, and the columns it chose."""

    status: str
    objective: float
    chosen: tuple[str, ...]


def build_program(
    tasks: Sequence[str],
    phases: Sequence[Sequence[str]],
    classes: Sequence[NodeClass],
    columns: Sequence[CertificateColumn],
    combinations: Sequence[Combination],
    optimum_seconds: float,
) -> Any:
    """Build the integer program as a `pulp.LpProblem`.

    Its unit of time is a fraction of the optimum (`UNITS`): solvers pass over gains of less than 1e-5 units.

    Variables are ``x`` per column (its name), ``t`` per phase, ``z`` for the step, and per class ``y`` the number of
    nodes that hold a given set of remainders.
    """
    pulp = _pulp()
    unit = optimum_seconds / UNITS
    program = pulp.LpProblem("hetrl", pulp.LpMinimize)
    x = {column.name: pulp.LpVariable(column.name, cat="Binary") for column in columns}
    phase = [pulp.LpVariable(f"t{number}", lowBound=0) for number in range(len(phases))]
    step = pulp.LpVariable("z", lowBound=0)
    program += step + 0
    program += step >= pulp.lpSum(phase), "step"
    for number, members in enumerate(phases):
        for task in members:
            load = pulp.lpSum(column.loads[task] / unit * x[column.name] for column in columns if task in column.loads)
            program += load <= phase[number], f"load_{tasks.index(task)}"
    for number, task in enumerate(tasks):
        program += pulp.lpSum(x[column.name] for column in columns if task in column.tasks) == 1, f"cover_{number}"
    for number, kind in enumerate(classes):
        _node_rows(pulp, program, number, kind, columns, x)
    lowest = min((each.relaxed_seconds for each in combinations), default=0.0) / unit
    for number, each in enumerate(combinations):
        missing = len(each.columns) - pulp.lpSum(x[name] for name in each.columns)
        if math.isinf(each.exact_seconds):
            program += missing >= 1, f"misfit_{number}"
        else:
            exact = each.exact_seconds / unit
            program += step >= exact - (exact - lowest) * missing, f"exact_{number}"
    return program


def objective_of(
    chosen: Sequence[str],
    phases: Sequence[Sequence[str]],
    columns: Sequence[CertificateColumn],
    combinations: Sequence[Combination],
) -> float:
    """Objective of a choice of columns to full precision; solvers print fewer digits."""
    mine = [column for column in columns if column.name in set(chosen)]
    relaxed = sum(max(sum(column.loads.get(task, 0.0) for column in mine) for task in phase) for phase in phases)
    exact = {frozenset(each.columns): each.exact_seconds for each in combinations}
    return max(relaxed, exact.get(frozenset(chosen), 0.0))


def _node_rows(
    pulp: Any, program: Any, number: int, kind: NodeClass, columns: Sequence[CertificateColumn], x: dict[str, Any]
) -> None:
    """Whole nodes and sets of remainders share the class's nodes."""
    whole = pulp.lpSum(column.vector[number] // kind.size * x[column.name] for column in columns)
    rests = sorted({column.vector[number] % kind.size for column in columns} - {0})
    most = kind.size // min(rests) if rests else 0
    patterns = [
        pattern
        for length in range(1, most + 1)
        for pattern in combinations_with_replacement(rests, length)
        if sum(pattern) <= kind.size
    ]
    y = [pulp.LpVariable(f"y{number}_{index}", lowBound=0, cat="Integer") for index in range(len(patterns))]
    program += whole + pulp.lpSum(y) <= len(kind.nodes), f"nodes_{number}"
    for rest in rests:
        held = pulp.lpSum(pattern.count(rest) * each for pattern, each in zip(patterns, y, strict=True))
        wanted = pulp.lpSum(x[column.name] for column in columns if column.vector[number] % kind.size == rest)
        program += wanted <= held, f"rest_{number}_{rest}"


def mps_text(program: Any) -> str:
    """Write a program in MPS format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.mps"
        program.writeMPS(str(path), rename=0)
        return path.read_text(encoding="utf-8")


def solve_mps(text: str, mip: str = "cbc", *, time_limit_seconds: float | None = None) -> MipAnswer:
    """Solve MPS text with one of `MIP_SOLVERS`."""
    pulp = _pulp()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.mps"
        path.write_text(text, encoding="utf-8")
        _, program = pulp.LpProblem.fromMPS(str(path))
    return solve_program(program, mip, time_limit_seconds=time_limit_seconds)


def solve_program(program: Any, mip: str = "cbc", *, time_limit_seconds: float | None = None) -> MipAnswer:
    """Solve a program to optimality.

    Raises
    ------
    SpecError
        For an unknown solver, or one that is not installed or has no licence.
    """
    pulp = _pulp()
    with _silenced():  # HiGHS prints who it is whatever it is told
        program.solve(_mip_solver(pulp, mip, time_limit_seconds))
    status = pulp.LpStatus[program.status]
    values = {variable.name: variable.varValue for variable in program.variables()}
    chosen = tuple(sorted(name for name, value in values.items() if name[0] == "x" and (value or 0.0) > CHOSEN))
    objective = float(pulp.value(program.objective)) if status == "Optimal" else math.inf
    return MipAnswer(status=status.lower(), objective=objective, chosen=chosen)


@contextmanager
def _silenced() -> Iterator[None]:
    """Send the standard output of compiled code nowhere."""
    sys.stdout.flush()
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)


def _mip_solver(pulp: Any, mip: str, time_limit_seconds: float | None) -> Any:
    if mip not in MIP_SOLVERS:
        raise SpecError(
            Problem(path="--mip", message="unknown solver", found=mip, valid=", ".join(MIP_SOLVERS), rule="MIP")
        )
    if not is_available(mip):
        needs = {
            "cbc": "the CBC that PuLP brings does not run on this machine",
            "highs": "it comes with pip install 'hetrl[highs]'",
            "gurobi": "it needs gurobipy and a licence",
        }[mip]
        raise SpecError(Problem(path="--mip", message=f"{mip} is not installed: {needs}", rule="MIP"))
    settings = {"msg": False, "gapRel": 0.0, "timeLimit": time_limit_seconds}
    return _solver_class(pulp, mip)(**settings)


def is_available(mip: str) -> bool:
    """Whether a solver of `MIP_SOLVERS` can be used here."""
    return bool(_solver_class(_pulp(), mip)(msg=False).available())


def _solver_class(pulp: Any, mip: str) -> Any:
    return {"cbc": pulp.PULP_CBC_CMD, "highs": pulp.HiGHS, "gurobi": pulp.GUROBI}[mip]


def _pulp() -> Any:
    # PuLP 3 announces the interface of PuLP 4 with every call
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="pulp")
    try:
        import pulp
    except ImportError as error:
        raise SpecError(
            Problem(path="--mip", message="PuLP is not installed: pip install PuLP", found=str(error), rule="MIP")
        ) from error
    return pulp
