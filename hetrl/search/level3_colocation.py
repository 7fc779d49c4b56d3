"""Level 3: how the tasks of one group share their devices.

The kernel combines every task's undominated options into the combination with the smallest total time that holds in
every interval on every node; generation comes last, since its KV pool lives in the room that is left. Here its answer
becomes task plans.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetrl.plan.plan import Replica, Residency, Stage, TaskPlan
from hetrl.search.context import SearchContext
from hetrl_kernels.options import Option

SHARDINGS = ("none", "zero1", "fsdp")
WEIGHTS = ("resident", "host", "dropped", "shared")
SHARED = WEIGHTS.index("shared")
"""The kernels' number of weights that are the train task's."""
OPTIMIZER_STATES = ("device", "host_when_idle", "host")


def task_plan(
    context: SearchContext,
    option: Option,
    of_nodes: Sequence[Sequence[int]],
    shares: list[int],
    kept: TaskPlan | None = None,
    *,
    keep_idle: bool = False,
) -> TaskPlan:
    """Turn a kernel's option into a task plan.

    Parameters
    ----------
    of_nodes
        Per node the ids of the devices that belong to the task's group.
    shares
        Prompts of every replica.
    kept
        Plan of the task whose stages stay on their devices.
    keep_idle
        Keep replicas of engines and scorers that get no prompts; else they hold no weights and get none.
    """
    trains = context.job.workflow.tasks[option.task].kind == "train"
    taken = [0] * len(of_nodes)
    replicas = []
    for number, (stages, share) in enumerate(zip(option.stages(), shares, strict=True)):
        placed = []
        for node, layers in stages:
            devices = tuple(of_nodes[node][taken[node] : taken[node] + option.degree])
            taken[node] += option.degree
            placed.append(Stage(num_layers=layers, devices=devices))
        if kept is not None:
            placed = list(kept.replicas[number].stages)
        elif share == 0 and not trains and not keep_idle:
            continue
        replicas.append(Replica(stages=tuple(placed), num_prompts=share))
    return TaskPlan(
        task=context.job.workflow.tasks[option.task].name,
        replicas=tuple(replicas),
        micro_batch_size=option.micro_batch,
        recompute=bool(option.recompute),
        sharding=SHARDINGS[option.sharding],
        residency=Residency(
            weights_when_idle=WEIGHTS[option.weights], optimizer_states=OPTIMIZER_STATES[option.optimizer]
        ),
    )
