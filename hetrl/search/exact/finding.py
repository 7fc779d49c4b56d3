"""The kernel that finds a task's options without cuts, and what it has to know of a job to compare them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.model import PHASES
from hetrl.cost.tables import TASK_KINDS, CostTables
from hetrl.search.exact.result import NodeClass
from hetrl.spec.job import Job
from hetrl_kernels.fronts import ExactFinder
from hetrl_kernels.tables import Tables

Floats = NDArray[np.float64]


def exact_finder(
    job: Job,
    tables: CostTables,
    kernel_tables: Tables,
    allowed: NDArray[np.int32],
    engine_limit: int,
    classes: Sequence[NodeClass],
    phases: Sequence[tuple[int, ...]],
) -> ExactFinder:
    """Return the kernel for a job.

    Parameters
    ----------
    allowed
        Features that plans may use, as in `allowed_features`.
    classes
        Nodes that may change places.
    phases
        Tasks of every phase of a step.
    """
    # all that comes later in a step waits for a task that is alone in its phase
    alone = [job.staleness == 0 and (task,) in phases for task in range(len(tables.task_kind))]
    leads = np.array(alone, dtype=np.int32)
    node_class = np.zeros(len(job.topology.nodes), dtype=np.int32)
    for number, kind in enumerate(classes):
        node_class[list(kind.nodes)] = number
    slack, far = _slacks(job, tables, leads)
    return ExactFinder(kernel_tables, allowed, engine_limit, slack, far, leads, node_class)


def _slacks(job: Job, tables: CostTables, leads: NDArray[np.int32]) -> tuple[Floats, Floats]:
    """Per task the seconds by which its data transfers, for train tasks also the syncs, may differ by option."""
    num_tasks = len(tables.task_kind)
    latency, bandwidth = float(tables.link_latency.max()), float(tables.link_bandwidth.min())
    slack = np.zeros(num_tasks)
    for target, source in zip(*np.nonzero(tables.task_needs), strict=True):
        seconds = latency + float(tables.transfer_bytes[target, source]) / bandwidth
        slack[[target, source]] += seconds
    far = slack.copy()
    for trainer in np.flatnonzero(tables.task_kind == TASK_KINDS.index("train")):
        for target in np.flatnonzero(tables.task_role == tables.task_role[trainer]):
            if tables.task_kind[target] == TASK_KINDS.index("train"):
                continue
            whole = float(tables.transfer_weights[target])
            seconds = 2 * latency + 2 * whole / bandwidth + len(tables.node_type) * whole / float(tables.node_nic.min())
            scale, fixed = tables.calibration[:, PHASES.index("sync"), :2].max(axis=0)
            far[trainer] += seconds * float(scale) + float(fixed)
        if not leads[trainer]:  # a sync may wait for what is not the training, too
            far[trainer] = np.inf
    if job.optimizer.minimises_dollars:  # other devices cost other dollars
        slack[:] = far[:] = np.inf
    return slack, far
