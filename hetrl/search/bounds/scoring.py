"""Lower bound of a scoring task's seconds on given numbers of devices by type.

Replicas may differ and share the micro-batches by speed. Where no device holds the whole model, a micro-batch also has
to pass all other stages: with at most a part c of the model on one tensor group, 1 - c of a pass on the fastest type.
"""

from __future__ import annotations

import numpy as np

from hetrl.cost.model import PHASES
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES, CostTables
from hetrl.search.bounds.passes import Floats, Ints, pass_of, rates, tensor_groups
from hetrl.spec.job import Job


def scoring_bound(job: Job, tables: CostTables, index: int, points: Ints) -> Floats:
    """Seconds that no layout undercuts on device counts ``points`` ``[K, Y]``; infinite where nothing fits."""
    best = np.full(len(points), np.inf)
    model = int(tables.task_model[index])
    usable = tables.type_supported > 0
    sequences = job.batch.num_prompts * int(tables.task_sequences[index])
    for degree_index, degree in enumerate(TENSOR_DEGREES):
        if not tables.tensor_allowed[model, degree_index]:
            continue
        groups = np.where(usable[None, :], tensor_groups(tables, points, degree), 0)
        largest = _largest_part(tables, index, degree)
        stages = int(np.ceil(1.0 / largest - 1e-9))
        for shape, micro_batch in enumerate(MICRO_BATCHES):
            amount = sequences / micro_batch
            hidden = micro_batch * job.batch.mean_sequence_tokens * float(tables.model_hidden_bytes[model])
            forward = pass_of(tables, model, degree_index, shape, hidden)
            parts = forward.weighted(tables.calibration[:, PHASES.index("score"), 0], 1.0)
            work, speed = rates(parts, forward.weights, usable)
            if not np.isfinite(work):
                continue
            total = groups @ speed
            slowest = np.where((groups > 0) & (speed > 0)[None, :], speed[None, :], np.inf).min(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                pipelines = stages * np.maximum(amount * slowest / total - 1.0, 0.0)
                seconds = work * (amount / total + (1.0 - largest) * pipelines / (pipelines + 1.0) / speed.max())
            best = np.minimum(best, np.where(groups.sum(axis=1) >= stages, seconds, np.inf))
    return best


def _largest_part(tables: CostTables, index: int, degree: int) -> float:
    """Largest part of the model that one tensor group holds; all of it where the trainer's weights may be shared."""
    if tables.task_trained[index]:
        return 1.0
    room = float((tables.node_limit - tables.type_allowance[tables.node_type, 0]).max()) * degree
    return float(np.clip(room / float(tables.transfer_weights[index]), 1e-3, 1.0))
