"""The question about weight transfers that a case may ask; see `benchmarks.case_asks` for the others.

The cost model and its compiled kernels are imported only when a case asks.
"""

from __future__ import annotations

from typing import Any

from benchmarks.case_asks import ASKS, Answer, Given
from hetrl.plan.plan import Replica, Stage, TaskPlan
from hetrl.spec.load import job_from_values


def weight_sync(given: Given) -> Answer:
    """How long does it take to send the policy's weights from one training node to the engines' nodes?

    Every engine node holds one engine over all its devices.
    """
    from hetrl.cost.model import CostModel
    from hetrl.cost.transfers import weight_sync as priced_sync

    count, per_node = given["num_engine_nodes"], given.get("devices_per_node", 8)
    engines = {
        "id": "engines",
        "count": count,
        "gpus": per_node,
        "type": given.get("device", "H100"),
        "network": given["engine_network"],
    }
    trainer = {
        "id": "trainer",
        "gpus": per_node,
        "type": given.get("device", "H100"),
        "network": given["trainer_network"],
    }
    job = job_from_values(
        {
            "workflow": {"algorithm": "GRPO", "actor_model": given["model"]},
            "cluster_topology": {"nodes": [trainer, engines]},
        }
    )
    train, generate = job.workflow.task("actor_train"), job.workflow.task("actor_generate")
    layers = train.model.num_layers

    def replica(first: int) -> Replica:
        return Replica(stages=(Stage(num_layers=layers, devices=tuple(range(first, first + per_node))),), num_prompts=1)

    source = TaskPlan(task=train.name, replicas=(replica(0),), micro_batch_size=1)
    target = TaskPlan(
        task=generate.name,
        replicas=tuple(replica(per_node * (1 + number)) for number in range(count)),
        micro_batch_size=1,
    )
    moved = priced_sync(job, CostModel.builtin(), train, source, generate, target)
    one_copy = train.model.num_parameters * 2.0
    out = count * one_copy / job.topology.nodes[0].nic_bytes_per_second
    into = one_copy / job.topology.nodes[1].nic_bytes_per_second
    values: dict[str, Any] = {
        "seconds": moved.seconds,
        "gigabytes": moved.num_bytes / 1e9,
        "bottleneck": "trainer" if out >= into else "engine",
        "seconds_of_trainer_network": out,
    }
    return Answer.of([], values)


ASKS["weight_sync"] = weight_sync
