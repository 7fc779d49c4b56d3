"""Speed and equality of the search kernels.

    python -m benchmarks.kernels [--quick | --full] [--json FILE]

Equality: options and whole plans against the readable evaluator; costs of plans after random moves, by delta, against
states worked out from nothing, bit for bit; costs of assignments composed from kept groups against those of a new
search. Speed: per core, CPU time; moves that changed nothing, did not fit, were rejected early, costed and accepted are
counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from benchmarks.kernels_anneal import ALGORITHMS, OUTCOMES, SIZES, case_of, delta_equals_full, speed
from benchmarks.prepared import prepared
from benchmarks.random_plans import option_error, random_assignments, random_options, relative
from hetrl.cost.evaluate import evaluate
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level4_assignment import Starts
from hetrl.search.level5_placement import place
from hetrl.search.plan_arrays import moved_plan, plan_arrays
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.anneal import anneal
from hetrl_kernels.plan_anneal import PlanAnnealer

INSTANCES = {20: "guide20", 64: "paper64_wan/PPO", 1024: "synthetic1024"}
PRUNED = {**INSTANCES, 4096: "synthetic4096"}
PLANS = ("guide20", "guideB/Llama-3-8B/PPO", "guideC/Qwen2.5-72B/DPO", "paper64_wan/GRPO", "paper64_lan/PPO")
PEERS = {"ReaL (C++)": "23,300 at 8 GPUs, 3,300 at 128", "Metis": "190 to 1,030", "HexiScale": "4 to 23"}
"""Plans costed per core second by other planners, as measured for this project on the same kind of machine."""


def context_of(name: str) -> SearchContext:
    return SearchContext(*prepared(benchmark_instance(name)))


def equality(num_options: int) -> dict[str, list[float]]:
    """Relative differences between kernels and evaluator, by instance; small fleets have fewer options."""
    found = {}
    for name in ("guide20", "guideB/Llama-3-8B/PPO", "guideC/Qwen2.5-72B/DPO", "paper64_wan/GRPO"):
        context = context_of(name)
        share = num_options // 4
        found[name] = [option_error(context, option) for option in islice(random_options(context, 11), share)]
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
    """Variants of training options bounded or cut before that, per CPU second; the median over fresh states.

    A layout that is cut as a whole counts once; bounded variants that turn out too slow (``SLOW_VARIANT``) are not
    counted again. The time includes the layouts, and the exact costs of those that come into the front.
    """
    rates = []
    for seed in range(repeats):
        context = context_of(name)
        train = [index for index, task in enumerate(context.job.workflow.tasks) if task.kind == "train"]
        drawn = list(islice(random_assignments(context, seed), 40))
        before = time.process_time()
        for grouping, assignment in drawn:
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


def plans_equal_reference(num_plans: int) -> dict[str, float]:
    """Largest relative difference of the annealing kernel's seconds to the evaluator's, over random plans.

    Both also agree on which plans fit; a disagreement counts as 1.
    """
    found = {"plans": 0, "infeasible": 0, "worst_relative": 0.0}
    for name in PLANS:
        context = context_of(name)
        rules = NodeRules(context)
        done, seed = 0, 0
        while done < num_plans / len(PLANS):
            seed += 1
            grouping, assignment = next(random_assignments(context, seed))
            cost = context.steps.cost(grouping, assignment, float("inf"))
            candidate = Candidate(grouping=grouping, assignment=assignment, cost=cost)
            plan = place(rules, candidate, exact_shares=bool(seed % 2)) if candidate.feasible else None
            arrays = plan_arrays(context, plan) if plan is not None else None
            if plan is None or arrays is None:
                continue
            annealer = PlanAnnealer(context.links, arrays)
            for turn in range(5):
                moved = moved_plan(context, plan, arrays, annealer.nodes())
                theirs, mine = evaluate(context.job, moved, context.costs).step_seconds, annealer.seconds
                fits = math.isfinite(mine) and math.isfinite(theirs)
                error = relative(mine, theirs) if fits else float(mine != theirs)
                found["worst_relative"] = max(found["worst_relative"], error)
                found["infeasible"] += not math.isfinite(theirs)
                done += 1
                annealer.wander(seed + turn, 20, feasible=turn < 3)
        found["plans"] += done
    return found


def annealing(sizes: Sequence[int], num_moves: int) -> dict[str, dict[str, object]]:
    """Annealing figures by ``<devices> <algorithm>``, printed as they come."""
    found: dict[str, dict[str, object]] = {"moves": {}, "equal": {}}
    columns = (*OUTCOMES, "moves_per_core_second", "costed_per_core_second")
    print(f"{'devices':14}" + "".join(f"{name:>24}" for name in columns) + f"{'delta == full':>24}")
    for size in sizes:
        for algorithm in ALGORITHMS:
            case = case_of(size, algorithm)
            rates, equal = speed(case, num_moves), delta_equals_full(case, size, num_moves)
            key = f"{size} {algorithm}"
            found["moves"][key], found["equal"][key] = rates, equal
            agreed = f"{int(equal['moves'])} moves, {int(equal['different'])} differ"
            print(f"{key:14}" + "".join(f"{rates[name]:24,.0f}" for name in columns) + f"{agreed:>24}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="two small fleets and few moves")
    effort.add_argument("--full", action="store_true", help="200,000 moves per fleet and 10,000 random plans")
    args = parser.parse_args()
    options, plans, moves, level_4_moves = (400, 200, 10_000, 50) if args.quick else (4_000, 1_000, 50_000, 200)
    if args.full:
        plans, moves = 10_000, 200_000
    sizes = SIZES[:2] if args.quick else SIZES
    fleets = {size: name for size, name in INSTANCES.items() if size in sizes}
    anneal_figures = annealing(sizes, moves)
    errors = equality(options)
    found: dict[str, object] = {
        "delta_equals_full": not any(figures["different"] for figures in anneal_figures["equal"].values()),
        "delta_equals_full_by_devices": anneal_figures["equal"],
        "anneal_moves_per_core_second": {
            key: figures["moves_per_core_second"] for key, figures in anneal_figures["moves"].items()
        },
        "anneal_costed_per_core_second": {
            key: figures["costed_per_core_second"] for key, figures in anneal_figures["moves"].items()
        },
        "anneal_by_devices": anneal_figures["moves"],
        "plans_equal_reference": plans_equal_reference(plans),
        "kernel_equals_reference_worst_relative": {name: max(each) for name, each in errors.items()},
        "options_compared": {name: len(each) for name, each in errors.items()},
        "kept_equals_full": {name: kept_equals_full(name, 60) for name in ("guide20", "paper64_wan/GRPO")},
        "prune_candidates_per_core_second": {
            size: candidates_per_second(name) for size, name in PRUNED.items() if size in sizes
        },
        "level_4_moves_per_core_second": {
            size: moves_per_second(name, level_4_moves if size < 1000 else 20) for size, name in fleets.items()
        },
        "peers_plans_per_core_second": PEERS,
    }
    print(json.dumps({key: value for key, value in found.items() if key != "anneal_by_devices"}, indent=1))
    print("moves costed to the end per core second; plans costed by peers, measured on this kind of machine:")
    for size in sizes:
        mine = [found_for(anneal_figures, size, algorithm) for algorithm in ALGORITHMS]
        peers = ", ".join(f"{name} {rates}" for name, rates in PEERS.items())
        print(f"{size:>6} devices {min(mine):>12,.0f}   {peers}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


def found_for(figures: dict[str, dict[str, object]], size: int, algorithm: str) -> float:
    return float(figures["moves"][f"{size} {algorithm}"]["costed_per_core_second"])


if __name__ == "__main__":
    main()
