"""Enumeration of the exact solver's declared space without any of its pruning, for jobs that are small enough.

Every partition, every device vector of every group, every declared option of every task, every packing. The kernels say
which options there are and what room an engine is left; nothing is bounded, compared or skipped.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetrl.cost.unit import UnitCosts
from hetrl.search.exact.placing import place
from hetrl.search.exact.problem import SHARED, Column, ExactProblem, declared_options, declared_vectors
from hetrl.search.exact.space import Vector
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl_kernels.exact_groups import GroupColumns
from hetrl_kernels.options import Option

TYPES = ("H100", "A100-80GB", "A100-40GB", "L40S", "L4")
MODELS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B", "Llama-3-8B")
SIZES = ((1, 1), (2, 1), (1, 2), (1, 1, 1), (2, 2))
ALGORITHMS = ("GRPO", "GRPO", "DPO", "PPO", "ReMax", "multi-reward")
MOST_COMBINATIONS = 30_000
"""Options of a group's tasks, and columns of a step's groups, that are combined with each other at most."""
KIND_ORDER = {"train": 0, "score": 1, "generate": 2}


class TooLarge(Exception):
    """The job has more combinations than enumeration takes on."""


def tiny_job(seed: int) -> Job:
    """A random job of two or three nodes with at most four devices, any workflow, often short of memory."""
    rng = random.Random(seed)
    sizes = rng.choice(SIZES)
    twins = rng.random() < 0.4
    nodes: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        node = {
            "id": f"node-{number}",
            "gpus": size,
            "type": rng.choice(TYPES),
            "interconnect": "PCIe-Gen4",
            "network": rng.choice(["10Gbps", "100Gbps", "400Gbps"]),
            "host_ram": rng.choice(["64GiB", "200GiB", "1TiB"]),
        }
        if twins and number and size == sizes[number - 1]:
            node = {**nodes[-1], "id": f"node-{number}"}
        nodes.append(node)
    algorithm = rng.choice(ALGORITHMS)
    models = MODELS[:2] if algorithm in ("PPO", "multi-reward") else MODELS
    actor, other = rng.choice(models), rng.choice(models)
    workflow: dict[str, Any] = {"algorithm": algorithm, "actor_model": actor, "reference_model": actor}
    if algorithm == "DPO":
        workflow["online"] = rng.random() < 0.5
    if algorithm in ("PPO", "multi-reward"):
        workflow["critic_model"] = other
    if algorithm in ("PPO", "ReMax") or workflow.get("online"):
        workflow["reward_model"] = other
    if algorithm == "multi-reward":
        workflow["reward_models"] = [other, actor]
    if algorithm != "DPO" and rng.random() < 0.3:
        workflow["staleness"] = rng.choice([1, 2])
    batch = {"num_prompts": rng.choice([8, 16, 48]), "max_response_tokens": 512}
    optimizer = {}
    if algorithm in ("PPO", "multi-reward"):  # six or seven tasks: fewer devices, and the options of executable plans
        nodes, batch["num_prompts"] = nodes[:2], 4
        for node in nodes:
            node["gpus"] = 1
        optimizer["executable"] = rng.random() < 0.9
    return job_from_values(
        {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "batch": batch, "optimizer": optimizer},
        source=f"tiny {seed}",
    )


def enumerate_space(job: Job, costs: UnitCosts) -> tuple[float, int]:
    """Lowest objective of the declared space (inf if nothing fits), and the number of steps evaluated.

    Raises
    ------
    TooLarge
        If the job is not small enough.
    """
    problem = ExactProblem(job, costs)
    capacity = problem.space.capacity
    best, evaluated = math.inf, 0
    known: dict[tuple[tuple[int, ...], Vector], list[Column]] = {}
    for partition in problem.space.partitions:
        for vectors in itertools.product(declared_vectors(problem), repeat=len(partition)):
            if (np.sum(vectors, axis=0) > capacity).any():
                continue
            for pair in zip(partition, vectors, strict=True):
                if pair not in known:
                    known[pair] = _all_columns(problem, *pair)
            groups = [known[pair] for pair in zip(partition, vectors, strict=True)]
            if math.prod(len(group) for group in groups) > MOST_COMBINATIONS:
                raise TooLarge
            for columns in itertools.product(*groups):
                evaluated += 1
                best = min(best, place(problem, columns).objective)
    return best, evaluated


def _all_columns(problem: ExactProblem, tasks: tuple[int, ...], vector: Vector) -> list[Column]:
    kinds = [task.kind for task in problem.job.workflow.tasks]
    order = sorted(tasks, key=lambda task: (KIND_ORDER[kinds[task]], task))
    lists = {task: declared_options(problem, task, vector) for task in order}
    if math.prod(max(1, len(options)) for options in lists.values()) > MOST_COMBINATIONS:
        raise TooLarge
    found = []
    unlimited = np.zeros((1, 2 * problem.relaxed.num_phases + 2))
    unlimited[:, -2:] = np.inf
    for chosen in _choices(problem, order, lists, vector, []):
        fronts = {option.task: [option] for option in chosen}
        pairs: dict[tuple[int, int], list[tuple[Option, Option]]] = {}
        for option in chosen:
            trainer = problem.relaxed.trainers.get(option.task)
            if trainer not in fronts:
                continue
            pairs[trainer, option.task] = []
            if option.weights == SHARED:
                partner = next(other for other in chosen if other.task == trainer)
                pairs[trainer, option.task] = [(partner, option)]
                fronts[option.task] = []
        search = GroupColumns(
            problem.finder,
            tasks,
            problem.space.key(vector),
            fronts,
            pairs,
            problem.relaxed.phase_of,
            unlimited,
            1 << 20,
            math.inf,
        )
        found += [problem.column(tasks, vector, options) for options in search.run()]
    return found


def _choices(
    problem: ExactProblem, order: list[int], lists: dict[int, list[Option]], vector: Vector, chosen: list[Option]
) -> Iterator[list[Option]]:
    if len(chosen) == len(order):
        yield chosen
        return
    task = order[len(chosen)]
    options = lists[task]
    partner = next((each for each in chosen if each.task == problem.relaxed.trainers.get(task)), None)
    if partner is not None:
        options = options + declared_options(problem, task, vector, partner)
    for option in options:
        yield from _choices(problem, order, lists, vector, [*chosen, option])
