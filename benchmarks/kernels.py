"""Speed and equality of the search kernels.

    python -m benchmarks.kernels [--json FILE] [--options N] [--moves N]

Equality: options of random plans against the readable evaluator (seconds and bytes), and costs of assignments after
random moves, composed from kept group costs, against costs worked out from nothing. Speed: per core, CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from itertools import islice
from pathlib import Path

from benchmarks.random_plans import option_error, random_assignments, random_options
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.context import SearchContext
from hetrl.search.level4_assignment import Starts
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.anneal import anneal
from hetrl_kernels.options import Option
from hetrl_kernels.placement import Placement

INSTANCES = {20: "guide20", 64: "paper64_wan/PPO", 1024: "synthetic1024"}
SWAPPED = {16: "guideC/Llama-3-8B/PPO", 64: "paper64_wan/PPO", 1024: "synthetic1024", 4096: "synthetic4096"}


def context_of(name: str) -> SearchContext:
    job = benchmark_instance(name)
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


def equality(num_options: int) -> dict[str, float]:
    """Largest relative difference between kernels and evaluator, by instance."""
    found = {}
    for name in ("guide20", "guideB/Llama-3-8B/PPO", "guideC/Qwen2.5-72B/DPO", "paper64_wan/GRPO"):
        context = context_of(name)
        share = num_options // 4
        found[name] = max(option_error(context, option) for option in islice(random_options(context, 11), share))
    return found


def kept_equals_full(name: str, num_moves: int) -> bool:
    """Whether costs composed from kept groups equal, bit for bit, those of a fresh search state."""
    kept = context_of(name)
    assignments = list(islice(random_assignments(kept, 5), num_moves))
    first = [kept.steps.cost(grouping, each, float("inf")) for grouping, each in assignments]
    fresh = context_of(name)
    random.Random(6).shuffle(assignments)
    second = {(grouping, each): fresh.steps.cost(grouping, each, float("inf")) for grouping, each in assignments}
    kept_again = {(grouping, each): kept.steps.cost(grouping, each, float("inf")) for grouping, each in assignments}
    return kept_again == second and set(first) == set(second.values())


def candidates_per_second(name: str, repeats: int = 3) -> float:
    """Variants of training options bounded per CPU second; the median over fresh states."""
    rates = []
    for seed in range(repeats):
        context = context_of(name)
        before = time.process_time()
        train = [index for index, task in enumerate(context.job.workflow.tasks) if task.kind == "train"]
        for grouping, assignment in islice(random_assignments(context, seed), 40):
            for tasks, counts in zip(grouping, assignment, strict=True):
                for task in set(tasks) & set(train):
                    context.steps.alone(task, counts)
        bounded = context.finder.num_candidates + sum(
            context.finder.cuts.get(cut, 0) for cut in ("DEVICE_MEMORY", "SLOW_LAYOUT")
        )
        rates.append(bounded / (time.process_time() - before))
    return sorted(rates)[repeats // 2]


def moves_per_second(name: str, num_moves: int) -> tuple[float, float]:
    """Assignments proposed per CPU second by annealing, from nothing and again with everything kept."""
    context = context_of(name)
    rng = random.Random(3)
    count = len(context.job.workflow.tasks)
    grouping = (tuple(range(0, count, 2)), tuple(range(1, count, 2)))
    start = Starts(context, rng).proportional(grouping, 0.0)
    rates = []
    for _ in range(2):
        cost = context.steps.cost(grouping, start, float("inf"))
        before = time.process_time()
        _, _, (null, proposed, _) = anneal(
            context.steps, grouping, start, cost, context.tables.node_kind,
            seed=1, num_moves=num_moves, block=4, start_temperature=0.1, end_temperature=0.005,
        )  # fmt: skip
        rates.append(proposed / (time.process_time() - before))
        del null
    return rates[0], rates[1]


def longest_option(context: SearchContext, kind: str) -> Option:
    """The option with the most slots of a task of this kind on the whole fleet."""
    found = [
        option
        for index, task in enumerate(context.job.workflow.tasks)
        if task.kind == kind
        for option in context.steps.alone(index, context.all_devices)
    ]
    return max(found, key=lambda option: sum(len(stages) for stages in option.stages()))


def delta_equals_full(context: SearchContext, option: Option, num_moves: int, check_every: int) -> bool:
    """Whether seconds kept up by delta equal, bit for bit, those worked out from the slots' nodes alone."""
    placement = Placement(context.finder, option)
    slots = len(placement.nodes())
    rng = random.Random(8)
    for move in range(num_moves):
        placement.swap_slots(rng.randrange(slots), rng.randrange(slots))
        if (
            move % check_every == 0
            and Placement(context.finder, option, placement.nodes()).seconds != placement.seconds
        ):
            return False
    return True


def swaps_per_second(context: SearchContext, option: Option, num_moves: int) -> tuple[float, float]:
    """Swaps that change something and are costed by delta, per CPU second; and the share of null swaps."""
    rates, nulls = [], []
    for seed in range(3):
        placement = Placement(context.finder, option)
        before = time.process_time()
        null, costed, _ = placement.anneal(seed, num_moves, 0.02, 0.0005)
        rates.append(costed / (time.process_time() - before))
        nulls.append(null / num_moves)
    return sorted(rates)[1], nulls[1]


def swaps(num_moves: int) -> dict[str, object]:
    """Level 5 on fleets of four sizes, training and scoring."""
    equal, rates, nulls = {}, {}, {}
    for devices, name in SWAPPED.items():
        context = context_of(name)
        for kind in ("train", "score"):
            option = longest_option(context, kind)
            key = f"{devices} {kind}"
            equal[key] = delta_equals_full(context, option, num_moves, 1 if devices < 1000 else 500)
            rates[key], nulls[key] = swaps_per_second(context, option, num_moves)
    return {"delta_equals_full": equal, "anneal_moves_per_core_second": rates, "null_share": nulls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--options", type=int, default=4000, help="random options compared with the evaluator")
    parser.add_argument("--moves", type=int, default=200, help="moves per speed measurement")
    parser.add_argument("--swaps", type=int, default=20_000, help="level-5 moves per fleet and kind of task")
    args = parser.parse_args()
    errors = equality(args.options)
    result: dict[str, object] = {
        "kernel_equals_reference_worst_relative": errors,
        "options_compared": args.options,
        "kept_equals_full": {name: kept_equals_full(name, 60) for name in ("guide20", "paper64_wan/GRPO")},
        "prune_candidates_per_core_second": {
            devices: candidates_per_second(name) for devices, name in INSTANCES.items()
        },
        "assignment_moves_per_core_second": {},
        "assignment_moves_per_core_second_kept": {},
    }
    for devices, name in INSTANCES.items():
        new, again = moves_per_second(name, args.moves if devices < 1000 else 20)
        result["assignment_moves_per_core_second"][devices] = new  # type: ignore[index]
        result["assignment_moves_per_core_second_kept"][devices] = again  # type: ignore[index]
    result |= swaps(args.swaps)
    print(json.dumps(result, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
