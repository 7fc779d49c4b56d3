"""What the exact solver returns: the declared space, the plan with its proof, and the certificate as plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hetrl.cost.estimate import Estimate
from hetrl.plan.plan import Plan
from hetrl.spec.job import Job

CERTIFICATE_VERSION = 3
ALL_VECTORS = "bound of all its vectors"
SOME_VECTORS = "priced cost of the vector"
SOME_COLUMNS = "priced cost of the column"
REMOVAL_REASONS = {
    ALL_VECTORS: "groups removed with whole partitions of the tasks",
    SOME_VECTORS: "device vectors of groups removed",
    SOME_COLUMNS: "columns removed",
}
"""Reason -> what is counted. After the first nothing of a partition is left, after the last what is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """Consecutive nodes that may change places: equal devices, hosts and links.

    Parameters
    ----------
    nodes
        Positions in the topology.
    size
        Devices of each.
    """

    nodes: tuple[int, ...]
    node_ids: tuple[str, ...]
    device_type: str
    size: int

    @property
    def num_devices(self) -> int:
        """Devices of all its nodes."""
        return len(self.nodes) * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSpace:
    """What the optimum is an optimum of.

    Parameters
    ----------
    classes
        Classes of interchangeable nodes; a group's devices are one count for each.
    num_vectors
        Device vectors of a group.
    num_partitions
        Set partitions of the tasks.
    phases
        Tasks of every phase: all of a phase end before any of the next begins. One phase where steps overlap.
    best_links
        True where nodes differ in nothing but their links and were put into one class all the same: the bound then
        holds for the best of their links, and plans are the best of canonical placements.
    text
        All of it in words.
    """

    classes: tuple[NodeClass, ...]
    num_vectors: int
    num_partitions: int
    phases: tuple[tuple[str, ...], ...]
    best_links: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateColumn:
    """A group of tasks on a device vector, with one way to run it.

    Parameters
    ----------
    name
        Its variable in the MPS text.
    tasks
        Names, in the workflow's order.
    vector
        Devices per class.
    seconds
        Per task.
    sync_seconds
        Per task whose weights come from a train task: a lower bound of the sync where the train task is in another
        group, the sync itself where both are in this one.
    loads
        Coefficients of this column in the phase rows, by row name.
    realisation
        Per task what a plan needs: ``stages`` (per replica a list of [node, layers], nodes as in `canonical_counts`),
        ``shares``, ``degree``, ``micro_batch``, ``recompute``, ``sharding``, ``weights``, ``optimizer``.
    canonical_counts
        Devices per node of the canonical placement (whole nodes first, then one remainder, per class).
    """

    name: str
    tasks: tuple[str, ...]
    vector: tuple[int, ...]
    seconds: Mapping[str, float]
    sync_seconds: Mapping[str, float]
    loads: Mapping[str, float]
    realisation: Mapping[str, Mapping[str, Any]]
    canonical_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Columns that together make a step, with its exact seconds (inf: no placement of them fits)."""

    columns: tuple[str, ...]
    relaxed_seconds: float
    exact_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What the solver left out of one partition of the tasks, because it cannot win.

    Every partition of the space has one, if only to say that none of its columns had to go.

    Parameters
    ----------
    partition
        Groups of task names, as `hetrl.search.exact.certificate.partition_name` writes them.
    group
        The group whose vectors were left out; empty where it is the partition's groups or columns.
    number
        How many groups, vectors or columns.
    reason
        One of `REMOVAL_REASONS`.
    bound_seconds
        No step with what was left out takes less.
    """

    partition: str
    group: str
    number: int
    reason: str
    bound_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Everything that another program needs to check the optimum.

    Parameters
    ----------
    job_sha256
        `job_digest` of the job.
    cost_model
        Name or file of the cost model.
    cost_model_sha256
        `hetrl.cost.model.CostModel.digest` of the cost model.
    optimum_seconds
        Value of the integer program, equal to the plan's step seconds.
    chosen
        Names of the plan's columns.
    mps
        The integer program in free MPS format.
    solver
        Which solver found ``optimum_seconds`` for ``mps`` ("none" where it was not asked).
    """

    job_sha256: str
    cost_model: str
    cost_model_sha256: str
    space: DeclaredSpace
    columns: tuple[CertificateColumn, ...]
    combinations: tuple[Combination, ...]
    removals: tuple[Removal, ...]
    optimum_seconds: float
    chosen: tuple[str, ...]
    mps: str
    solver: str
    version: int = CERTIFICATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; infinite figures become None."""
        return _plain(dataclasses.asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Certificate:
        """Read what `to_json` wrote; raises KeyError or TypeError for anything else."""
        space = dict(values["space"])
        space["classes"] = tuple(
            NodeClass(
                nodes=tuple(each["nodes"]),
                node_ids=tuple(each["node_ids"]),
                device_type=each["device_type"],
                size=each["size"],
            )
            for each in space["classes"]
        )
        space["phases"] = tuple(tuple(each) for each in space["phases"])
        columns = tuple(
            CertificateColumn(
                **{
                    **each,
                    "tasks": tuple(each["tasks"]),
                    "vector": tuple(each["vector"]),
                    "canonical_counts": tuple(each["canonical_counts"]),
                }
            )
            for each in values["columns"]
        )
        combinations = tuple(
            Combination(
                columns=tuple(each["columns"]),
                relaxed_seconds=each["relaxed_seconds"],
                exact_seconds=math.inf if each["exact_seconds"] is None else each["exact_seconds"],
            )
            for each in values["combinations"]
        )
        return cls(
            job_sha256=str(values["job_sha256"]),
            cost_model=str(values["cost_model"]),
            cost_model_sha256=str(values["cost_model_sha256"]),
            space=DeclaredSpace(**space),
            columns=columns,
            combinations=combinations,
            removals=tuple(Removal(**{**each, "bound_seconds": _number(each)}) for each in values["removals"]),
            optimum_seconds=values["optimum_seconds"],
            chosen=tuple(values["chosen"]),
            mps=values["mps"],
            solver=values["solver"],
            version=values["version"],
        )


def _number(removal: Mapping[str, Any]) -> float:
    value = removal["bound_seconds"]
    return math.inf if value is None else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """The answer of the exact solver.

    Parameters
    ----------
    status
        ``optimal`` (proven in the declared space, up to the gap asked for), ``feasible`` (stopped, or something
        overflowed: the bound holds all the same) or ``infeasible`` (proven; see ``reasons``).
    objective
        Of ``optimal``: the optimum of the declared space. Otherwise what the plan costs.
    plan, estimate
        The best plan, None if infeasible: the optimum after level 5, which splits layers and shares anew and so leaves
        the space, or the start where that is better still.
    lower_bound
        Objective (seconds, or dollars) that no plan of the declared space undercuts.
    seed_objective
        What the warm start (or the hybrid's plan) costs, inf without one.
    counts
        Work by kind, removals by reason, overflows.
    message, reasons
        Of an infeasible job: the binding resource, and what would help.
    certificate
        For ``optimal`` with the objective ``step_seconds``.
    """

    status: str
    plan: Plan | None
    estimate: Estimate | None
    objective: float
    lower_bound: float
    space: DeclaredSpace
    seed_objective: float = math.inf
    counts: Mapping[str, int] = field(default_factory=dict)
    message: str = ""
    reasons: tuple[str, ...] = ()
    stopped_by_time: bool = False
    interrupted: bool = False
    certificate: Certificate | None = None

    @property
    def gap(self) -> float:
        """How far the plan may be from the optimum: ``objective / lower bound - 1``."""
        return max(0.0, self.objective / self.lower_bound - 1.0) if self.lower_bound > 0 else math.inf


def job_digest(job: Job) -> str:
    """Identify what was solved: the configuration as read."""
    return hashlib.sha256(json.dumps(job.config, sort_keys=True, default=str).encode()).hexdigest()
