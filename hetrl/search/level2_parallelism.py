"""Level 2: which parallel layouts and strategies a task may use at all. The kernels enumerate and cost them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.tables import TASK_KINDS
from hetrl.plan.capabilities import CAPABILITIES
from hetrl.plan.plan import Replica, Residency, Stage, TaskPlan
from hetrl.spec.job import Job
from hetrl.spec.model import Model


def tensor_degree_allowed(model: Model, tensor_parallel: int) -> bool:
    """Head, key/value head, intermediate and expert-width rules of every layer (with key/value replication)."""
    for layer in model.layer_kinds[0]:
        if layer.num_heads % tensor_parallel:
            return False
        if not layer.kv_is_latent and layer.num_kv_heads % tensor_parallel and tensor_parallel % layer.num_kv_heads:
            return False
        widths = (layer.intermediate_size, layer.moe_intermediate_size, layer.shared_intermediate_size)
        if any(width % tensor_parallel for width in widths):
            return False
    return True


def allowed_features(job: Job) -> NDArray[np.int32]:
    """Features that plans may use, ``[task kind, feature]`` in the kernels' order.

    All of them, unless the job asks for executable plans: then only what the runtime's capabilities list.
    """
    stage = Stage(num_layers=1, devices=(0,))
    plain = Replica(stages=(stage,), num_prompts=1)
    pipeline = Replica(stages=(stage, Stage(num_layers=1, devices=(1,))), num_prompts=1)
    tensor = Replica(stages=(Stage(num_layers=1, devices=(0, 1)),), num_prompts=1)

    def plan(replica: Replica = plain, **settings: object) -> TaskPlan:
        return TaskPlan(task="probe", replicas=(replica,), micro_batch_size=1, **settings)  # type: ignore[arg-type]

    probes = (
        plan(pipeline),
        plan(tensor),
        plan(sharding="zero1"),
        plan(sharding="fsdp"),
        plan(recompute=True),
        plan(residency=Residency(optimizer_states="host")),
        plan(residency=Residency(weights_when_idle="host")),
        plan(residency=Residency(weights_when_idle="dropped")),
    )
    missing = [each for each in CAPABILITIES if not each.supported] if job.optimizer.executable else []
    return np.array(
        [[not any(each.asked_by(kind, probe) for each in missing) for probe in probes] for kind in TASK_KINDS],
        dtype=np.int32,
    )
