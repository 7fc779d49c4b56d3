"""Four devices and four models through the public API, beside a first-fit by FLOP/s.

    python examples/blueprint.py

First-fit asks one number per model and one per device: does it fit in what is left. Its placement is then judged by
the evaluator, which counts everything that training holds (states, activations, KV caches, in every phase), and the
planner is asked for a better one.
"""

from __future__ import annotations

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.context import SearchContext
from hetrl.search.solvers import solve
from hetrl.search.written_plan import written_plan
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values

NODES = [
    {"id": "h100", "gpus": 2, "type": "H100", "interconnect": "NVLink-900G"},
    {"id": "a100", "gpus": 1, "type": "A100-80GB", "interconnect": "NVLink-600G"},
    {"id": "l40s", "gpus": 1, "type": "L40S", "interconnect": "PCIe-Gen4"},
]
# name, TFLOP/s, GB
DEVICES = [("h100-1", 989, 80), ("h100-2", 989, 80), ("a100-1", 312, 80), ("l40s-1", 366, 48)]
# name, GB of weights and of working memory as the blueprint assumes them (4-bit weights for the 70B models), GFLOP
TASKS = [("actor", 35 + 32, 4200), ("critic", 16 + 24, 850), ("reward", 16 + 6, 350), ("reference", 35 + 8, 700)]
TASKS_OF = {
    "actor": ["actor_generate", "actor_train"],
    "critic": ["critic_score", "critic_train"],
    "reward": ["reward_score"],
    "reference": ["reference_score"],
}


def first_fit() -> dict[str, str]:
    """Place the heaviest task on the fastest device with enough memory left, and so on."""
    left = {name: gigabytes for name, _, gigabytes in DEVICES}
    by_speed = sorted(DEVICES, key=lambda device: -device[1])
    placed = {}
    for task, gigabytes, _ in sorted(TASKS, key=lambda task: -task[2]):
        device = next(name for name, _, _ in by_speed if left[name] >= gigabytes)
        left[device] -= gigabytes
        placed[task] = device
    return placed


def job_of(actor: str) -> Job:
    """PPO of two actor-sized and two 8B models on the four devices."""
    return job_from_values(
        {
            "workflow": {
                "algorithm": "PPO",
                "actor_model": actor,
                "critic_model": "Llama-3-8B",
                "reward_model": "FsfairX-LLaMA3-RM-v0.1",
                "reference_model": actor,
            },
            "cluster_topology": {"nodes": NODES},
            "optimizer": {"solver": "hybrid", "memory_safety_margin": 0.1},
        }
    )


def first_fit_as_a_plan(context: SearchContext, placed: dict[str, str]) -> Plan:
    """Every model's tasks whole on the device that first-fit chose, nothing offloaded."""
    groups: dict[str, list[str]] = {}
    for model, device in placed.items():
        groups.setdefault(device, []).extend(task for task in TASKS_OF[model])
    return written_plan(
        context,
        {
            "groups": [
                {"tasks": tasks, "nodes": {device.partition("-")[0]: 1}} for device, tasks in sorted(groups.items())
            ],
            "strategies": {task: {"tensor": 1} for tasks in groups.values() for task in tasks},
        },
    )


def judge(actor: str) -> None:
    """Print what the evaluator says of first-fit, and what the planner answers."""
    model = CostModel.builtin()
    job = model.with_links(job_of(actor))
    costs = UnitCosts(model, job.precision)
    estimate = evaluate(job, first_fit_as_a_plan(SearchContext(job, costs), first_fit()), costs)
    print(f"\n{actor} as actor and reference, bf16 weights, AdamW; first-fit's placement:")
    if estimate.feasible:
        print(f"  one step takes {estimate.step_seconds:.1f} s")
    worst: dict[str, str] = {}
    for problem in estimate.problems:
        worst.setdefault(problem.path.partition(".")[0], f"  {problem}")
    print("\n".join(worst.values()))
    print("the planner:")
    try:
        result = solve(job, costs)
    except InfeasibleError as error:
        print(f"  {error}")
        return
    print(f"  one step takes {result.estimate.step_seconds:.1f} s (at least {result.lower_bound:.1f} s for any plan)")
    for task in result.plan.tasks:
        kinds = sorted({job.topology.devices[device].type.name for device in task.devices})
        replicas = "1 replica" if len(task.replicas) == 1 else f"{len(task.replicas)} replicas"
        print(f"  {task.task:<16} {len(task.devices)} devices ({', '.join(kinds)}), {replicas}")


def main() -> None:
    """Print both answers."""
    print("first-fit by FLOP/s, with the blueprint's figures:")
    for task, device in first_fit().items():
        print(f"  {task:<16} {device}")
    judge("Llama-3-70B")
    judge("Llama-3-8B")


if __name__ == "__main__":
    main()
