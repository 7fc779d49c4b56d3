"""Plans of several sizes, and what annealing their blocks costs: speed by kind of outcome, and delta against full."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.prepared import prepared
from benchmarks.random_plans import relative
from hetrl.cost.evaluate import evaluate
from hetrl.plan.plan import Plan
from hetrl.search.context import SearchContext
from hetrl.search.hybrid import solve
from hetrl.search.level5_polish import END_TEMPERATURE, START_TEMPERATURE
from hetrl.search.plan_arrays import PlanArrays, moved_plan, plan_arrays
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance, synthetic_job
from hetrl_kernels.plan_anneal import PlanAnnealer

SIZES = (20, 64, 128, 1024, 4096)
ALGORITHMS = ("PPO", "GRPO")
OUTCOMES = ("null", "infeasible", "early_rejected", "costed", "accepted")
FULL_EVERY = {20: 1, 64: 1, 128: 1, 1024: 4, 4096: 20}
"""Moves per state worked out from nothing: an error of one move stays, so that fewer checks find it too."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, the plan that the search finds with its default budget, and the plan's arrays."""

    context: SearchContext
    plan: Plan
    arrays: PlanArrays

    def annealer(self) -> PlanAnnealer:
        """A new state of the plan."""
        return PlanAnnealer(self.context.links, self.arrays)


def job_of(num_devices: int, algorithm: str) -> Job:
    """The benchmark instance of a size (128: sixteen nodes of the synthetic pattern), with PPO or GRPO."""
    overrides: dict[str, object] = {"optimizer.max_search_seconds": 3600}
    if num_devices == 64:
        return benchmark_instance(f"paper64_wan/{algorithm}", overrides)
    if num_devices == 20:
        actor, reward = "meta-llama/Meta-Llama-3-70B-Instruct", "sfairXC/FsfairX-LLaMA3-RM-v0.1"
    else:
        actor, reward = "Llama-3-70B", "FsfairX-LLaMA3-RM-v0.1"
    if algorithm == "GRPO":
        overrides["workflow"] = {
            "algorithm": "GRPO", "actor_model": actor, "reference_model": actor, "reward_model": reward,
        }  # fmt: skip
    if num_devices == 128:
        values = synthetic_job("synthetic1024")
        topology = values["cluster_topology"]
        assert isinstance(topology, dict)
        topology["nodes"] = topology["nodes"][:16]
        values["batch"] = {"num_prompts": 512}
        return job_from_values(values, source="synthetic128", overrides=overrides)
    return benchmark_instance("guide20" if num_devices == 20 else f"synthetic{num_devices}", overrides)


def case_of(num_devices: int, algorithm: str) -> Case:
    """Plan the instance, and lower the plan."""
    job, costs = prepared(job_of(num_devices, algorithm))
    context = SearchContext(job, costs)
    plan = solve(job, costs, context=context).plan
    arrays = plan_arrays(context, plan)
    assert arrays is not None
    return Case(context=context, plan=plan, arrays=arrays)


def speed(case: Case, num_moves: int) -> dict[str, float]:
    """One chain at level 5's temperatures: outcomes, and rates per CPU second of one thread.

    ``early_rejected`` and ``costed`` moves change the plan and are costed by delta: the former until a bound exceeds
    the threshold, the latter to the end. ``moves_per_core_second`` counts both, and the time of all proposals.
    ``costed_per_core_second`` comes from a second chain without early rejection, which accepts the same moves.
    """
    figures: dict[str, float] = {}
    for early in (True, False):
        annealer = case.annealer()
        annealer.anneal(1, num_moves // 10, START_TEMPERATURE, START_TEMPERATURE)  # now it is warm
        before = time.thread_time()
        counters = annealer.anneal(2, num_moves, START_TEMPERATURE, END_TEMPERATURE, early=early)
        seconds = time.thread_time() - before
        costed = counters[2] + counters[3]
        if early:
            figures |= dict(zip(OUTCOMES, counters, strict=True))
            figures["moves_per_core_second"] = costed / seconds
        else:
            figures["costed_per_core_second"] = costed / seconds
    return figures


def delta_equals_full(case: Case, num_devices: int, num_moves: int) -> dict[str, float]:
    """Random moves, half of them taken back: cost by delta against a state worked out from nothing, bit for bit.

    Returns
    -------
    dict
        ``moves``, ``different``, ``full`` (states worked out), ``evaluated`` and ``worst_relative``: the same for some
        states against the readable evaluator.
    """
    annealer, full = case.annealer(), case.annealer()
    every = FULL_EVERY[num_devices]
    different, worst, evaluated = 0, 0.0, 0
    rounds = max(1, num_moves // every)
    for turn in range(rounds):
        annealer.wander(turn, every, feasible=True)
        full.rebuild(annealer.nodes())
        different += full.seconds != annealer.seconds
        if turn % max(1, rounds // 10) == 0:
            moved = moved_plan(case.context, case.plan, case.arrays, annealer.nodes())
            seconds = evaluate(case.context.job, moved, case.context.costs).step_seconds
            worst = max(worst, relative(seconds, annealer.seconds))
            evaluated += 1
    return {
        "moves": rounds * every,
        "full": rounds,
        "different": different,
        "evaluated": evaluated,
        "worst_relative": worst,
    }
