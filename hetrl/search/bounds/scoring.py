"""Lower bound of a scoring task's seconds on given numbers of devices by type.

Replicas may differ and share the micro-batches by speed. Where no device holds the whole model, a micro-batch also has
to pass all other stages: with at most a part c of the model on one tensor group, 1 - c of a pass on the fastest type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetrl.cost.model import PHASES
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES, CostTables
from hetrl.search.bounds.passes import Ints, most_tensor_groups, pass_of, rates, types_for
from hetrl.spec.job import Job


def scoring_bound(job: Job, tables: CostTables, index: int) -> Callable[[Ints], float]:
    """Return the function of device counts ``[Y]`` to the seconds that no layout undercuts on them."""
    model = int(tables.task_model[index])
    usable = types_for(tables, index)
    sequences = job.batch.num_prompts * int(tables.task_sequences[index])
    rows = []
    for degree_index in np.flatnonzero(tables.tensor_allowed[model]).tolist():
        degree = TENSOR_DEGREES[degree_index]
        largest = _largest_part(tables, index, degree)
        for shape, micro_batch in enumerate(MICRO_BATCHES):
            hidden = micro_batch * job.batch.mean_sequence_tokens * float(tables.model_hidden_bytes[model])
            forward = pass_of(tables, model, degree_index, shape, hidden)
            parts = forward.weighted(tables.calibration[:, PHASES.index("score"), 0], 1.0)
            work, speed = rates(parts, forward.weights, usable)
            if np.isfinite(work):
                rows.append((degree, sequences / micro_batch, largest, work, speed))
    if not rows:
        return lambda counts: float("inf")
    degrees, amount, largest_part, work_of = (np.array([row[number] for row in rows]) for number in range(4))
    speeds = np.stack([row[4] for row in rows])
    most_groups = np.stack([np.where(usable, most_tensor_groups(tables, degree), 0) for degree in degrees.tolist()])
    stages = np.ceil(1.0 / largest_part - 1e-9)

    def seconds(counts: Ints) -> float:
        groups = np.minimum(counts // degrees[:, None], most_groups)
        total = (groups * speeds).sum(axis=1)
        slowest = np.where((groups > 0) & (speeds > 0), speeds, np.inf).min(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            pipelines = stages * np.maximum(amount * slowest / total - 1.0, 0.0)
            passed = (1.0 - largest_part) * pipelines / (pipelines + 1.0) / speeds.max(axis=1)
            found = np.where(groups.sum(axis=1) >= stages, work_of * (amount / total + passed), np.inf)
        return float(np.fmin.reduce(found))

    return seconds


def _largest_part(tables: CostTables, index: int, degree: int) -> float:
    """Largest part of the model that one tensor group holds; all of it where the trainer's weights may be shared."""
    if tables.task_trained[index]:
        return 1.0
    room = float((tables.node_limit - tables.type_allowance[tables.node_type, 0]).max()) * degree
    return float(np.clip(room / float(tables.transfer_weights[index]), 1e-3, 1.0))
