"""The exact solver: screen partitions and vectors by bounds, cost what is left, search its combinations, prove."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise, product
from typing import TypeVar

import numpy as np

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.bounds import dollar_bound, lower_bound
from hetrl.search.chains import improved, objective_of
from hetrl.search.constraints import NodeRules
from hetrl.search.exact.certificate import make_certificate, partition_name
from hetrl.search.exact.columns import ColumnMaker, TaskBounds
from hetrl.search.exact.combining import ColumnSearch, Incumbent
from hetrl.search.exact.placing import canonical_plans
from hetrl.search.exact.problem import Column, ExactProblem
from hetrl.search.exact.result import (
    ALL_VECTORS,
    SOME_COLUMNS,
    SOME_VECTORS,
    Certificate,
    DeclaredSpace,
    ExactResult,
    Removal,
)
from hetrl.search.exact.space import Vector
from hetrl.search.exact.survivors import SAFETY, NeededGroups, Partition, Survivors, need_columns, screen_partition
from hetrl.search.exact.workers import Workers
from hetrl.search.hybrid import solve
from hetrl.search.infeasible import explain_infeasible
from hetrl.spec.job import Job

Result = TypeVar("Result")
Progress = Callable[[float, float, float], None]
NUM_PLACED, MOST_PLACEMENTS = 8, 24
"""Where links differ inside classes: combinations, and placements of each, that are evaluated on the real links."""
PRICE_RATIO = 1.15
"""Upper over lower end of the bands of hourly prices, one after the other, where dollars are the objective."""
RISING_SLACKS = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
"""Cutoffs above the lowest bound that are tried one after the other."""
NUM_PROBED = 12
NUM_PROBED_VECTORS = 12
"""Partitions, and vectors of each of their groups, that are worked out first, for a better incumbent."""
START_WIDTHS = (1.01, 1.04, 1.12)
"""Columns of the start's groups may be so much slower than the start, which level 5 has made faster than any column."""
FIRST_WIDENING = 1.05
"""Where the warm start lies outside the space, the first incumbent that is asked for, relative to it."""


def solve_exact(
    job: Job,
    costs: UnitCosts,
    *,
    gap: float = 0.0,
    time_limit_seconds: float | None = None,
    mip: str | None = "cbc",
    progress: Progress | None = None,
    warm_start: Plan | None = None,
    threads: int | None = None,
) -> ExactResult:
    """Find the best plan of the declared space, and prove it.

    Parameters
    ----------
    gap
        Relative gap that is good enough.
    time_limit_seconds
        After it the best plan so far is returned with its bound.
    mip
        Solver of the certificate's integer program: ``cbc``, ``highs``, ``gurobi``; None for no certificate.
    progress
        Called with (lower bound, incumbent, gap).
    warm_start
        A plan to start from; the hybrid search makes one if none is given.
    threads
        Worker processes; None for one per core where the space is large. The answer does not depend on it.
    """
    solver = Prover(
        job, costs, gap=gap, time_limit_seconds=time_limit_seconds, mip=mip, progress=progress, threads=threads
    )
    try:
        return solver.run(warm_start)
    finally:
        solver.workers.close()


class Prover:
    """One job's space, what is known of it so far, and the passes over it; parameters as of `solve_exact`."""

    def __init__(
        self,
        job: Job,
        costs: UnitCosts,
        *,
        gap: float,
        time_limit_seconds: float | None,
        mip: str | None,
        progress: Progress | None = None,
        threads: int | None = None,
    ) -> None:
        self.start = time.monotonic()
        self.deadline = self.start + time_limit_seconds if time_limit_seconds is not None else math.inf
        self.problem = ExactProblem(job, costs)
        self.job, self.costs, self.gap, self.mip, self.progress = job, costs, gap, mip, progress
        self.workers = Workers(self.problem, threads)
        self.bounds = TaskBounds(self.problem, self.workers)
        self.maker = ColumnMaker(self.problem, self.deadline)
        self.counts: dict[str, int] = {}
        self.searched: list[tuple[Partition, int, ColumnSearch]] = []
        self.removals: list[Removal] = []
        self.timed_out = self.interrupted = False
        self.start_groups: set[frozenset[int]] = set()
        context = self.problem.context
        self.floor = lower_bound(job, context.tables, context.fluid)  # of every plan, before anything is worked out

    def floor_dollars(self) -> float:
        """Return dollars that no plan undercuts, before anything is worked out."""
        context = self.problem.context
        return dollar_bound(context.tables, context.fluid, self.floor)

    def stop(self) -> bool:
        """Whether the time is over."""
        self.timed_out = self.timed_out or time.monotonic() > self.deadline
        return self.timed_out

    def run(self, warm_start: Plan | None) -> ExactResult:
        """Solve; what is known is returned when the time is over or at Ctrl-C."""
        seed = self.seed(warm_start)
        seed_objective = math.inf
        incumbent = Incumbent(self.problem, math.inf)
        lower = self.floor_dollars() if self.problem.dollars else self.floor
        if seed is not None:
            seed_objective = objective_of(self.job, evaluate(self.job, seed, self.costs))
            index = self.job.workflow.index
            self.start_groups = {frozenset(map(index, group.tasks)) for group in seed.groups if group.tasks}
        try:
            if not self.interrupted:
                if seed is not None and not self.problem.space.best_links:
                    self.offer_plan(seed, incumbent)
                lower = self.widen(seed_objective, incumbent)
        except KeyboardInterrupt:
            if seed is None:
                raise
            self.interrupted = True
        return self.result(seed, seed_objective, incumbent, lower)

    def widen(self, seed_objective: float, incumbent: Incumbent) -> float:
        """Search below the start; where it lies outside the space, and nothing is found, below ever higher cutoffs."""
        cutoff = incumbent.objective
        if math.isinf(cutoff) and math.isfinite(seed_objective):
            # the step on the best links is shorter than the start, which is not so for plans outside the space
            cutoff = seed_objective * (1.0 if self.problem.space.best_links else FIRST_WIDENING)
        while True:
            incumbent.objective = min(incumbent.objective, cutoff)
            lower = self.search(incumbent)
            if incumbent.placed is not None or self.timed_out or self.interrupted or math.isinf(cutoff):
                return lower
            cutoff = math.inf if cutoff > 3 * seed_objective else 1.5 * cutoff
            incumbent.objective = math.inf

    def seed(self, warm_start: Plan | None) -> Plan | None:
        """Return a plan to start from; Ctrl-C in the search for one ends the proof, too."""
        if warm_start is not None:
            return warm_start
        try:
            found = solve(self.job, self.costs)
        except InfeasibleError:
            return None
        self.interrupted = found.interrupted
        return found.plan

    def unless_interrupted(self, work: Callable[[], Result], otherwise: Result) -> Result:
        """Return what some work on a plan that is known already gives, or at Ctrl-C what there is without it."""
        try:
            return work()
        except KeyboardInterrupt:
            self.interrupted = True
            return otherwise

    def offer_plan(self, plan: Plan, incumbent: Incumbent) -> None:
        """Find the plan's combination of columns in the space, if it has one."""
        problem, topology = self.problem, self.job.topology
        estimate = evaluate(self.job, plan, self.costs)
        chosen: list[tuple[tuple[int, ...], Vector]] = []
        for group in plan.groups:
            if not group.tasks:
                continue  # devices that stay unused
            counts = np.zeros(len(topology.nodes), dtype=np.int32)
            for device in group.devices:
                counts[topology.devices[device].node] += 1
            tasks = tuple(sorted(self.job.workflow.index(name) for name in group.tasks))
            vector = problem.space.vector_of(counts.tolist())
            if not problem.space.admits(vector):
                return
            chosen.append((tasks, vector))
        groups: list[list[Column]] = []
        for width in START_WIDTHS:
            groups = [self.columns_near(tasks, vector, estimate, width) for tasks, vector in chosen]
            if all(groups) or self.stop():
                break
        for columns in product(*groups):
            relaxed = problem.relaxed.value(np.sum([column.rows for column in columns], axis=0))
            if relaxed < incumbent.objective or self.problem.dollars:
                incumbent.offer(columns, relaxed)

    def columns_near(self, tasks: tuple[int, ...], vector: Vector, estimate: Estimate, width: float) -> list[Column]:
        """Columns of a group whose tasks take at most ``width`` times what they take in a plan."""
        names = [task.name for task in self.job.workflow.tasks]
        cutoffs = {task: width * estimate.tasks[names[task]].seconds for task in tasks}
        limits = np.zeros(2 * self.problem.relaxed.num_phases + 2)
        limits[-2:] = sum(cutoffs.values()) + 1e-9, math.inf
        return self.maker.make(vector, {tasks: [limits]}, {tasks: cutoffs})[tasks]

    def search(self, incumbent: Incumbent) -> float:
        """Search everything, or one band of prices after the other; returns a lower bound of the objective."""
        problem = self.problem
        if not problem.dollars:
            return self.search_partitions(incumbent)
        prices = problem.space.vectors @ problem.usd_per_second
        lowest, highest = float(prices.min()), float(prices.max())
        edges = [lowest]
        while edges[-1] < highest:
            edges.append(min(edges[-1] * PRICE_RATIO, highest * (1 + SAFETY)))
        for low, high in reversed(list(pairwise(edges))):
            problem.band = (low, high)
            self.search_partitions(incumbent)
            if self.timed_out or self.interrupted:
                return min(self.floor_dollars(), incumbent.objective)
        return incumbent.objective / (1.0 + self.gap)

    def search_partitions(self, incumbent: Incumbent) -> float:
        """One pass over all partitions; returns a lower bound of the objective."""
        self.searched, self.removals = [], []
        partitions = self.problem.space.partitions
        open_bounds = dict.fromkeys(range(len(partitions)), 0.0)
        try:
            screened: list[Survivors] = []
            probed = 0
            for number in sorted(open_bounds, key=lambda number: (not self.is_start(partitions[number]), number)):
                left = screen_partition(
                    self.problem, self.bounds, partitions[number], self.cutoff(incumbent), self.stop
                )
                open_bounds[number] = left.bound
                if self.stop():
                    return self.lower(open_bounds, incumbent)
                if left.vectors:
                    screened.append(left)
                else:
                    open_bounds[number] = math.inf
                    self.remove(left.partition, len(left.partition), ALL_VECTORS, left.bound)
                if left.vectors and probed < NUM_PROBED and not self.problem.space.best_links:
                    probed += 1
                    self.rise([left.cheapest(NUM_PROBED_VECTORS)], incumbent)
                self.report(open_bounds, incumbent)
            self.count("partitions_screened", len(partitions) - len(screened))
            screened.sort(key=lambda each: each.bound)
            if self.problem.space.best_links and screened:
                self.rise(screened, incumbent)
            for left in screened[:NUM_PROBED]:
                self.rise([left.cheapest(NUM_PROBED_VECTORS)], incumbent)
            numbers = {partition: number for number, partition in enumerate(partitions)}
            remaining = []
            for left in screened:
                if left.tighten(self.limit(incumbent)):
                    remaining.append(left)
                    self.remove_vectors(left, incumbent)
                else:
                    open_bounds[numbers[left.partition]] = math.inf
                    self.remove(left.partition, len(left.partition), ALL_VECTORS, left.bound)
            self.explore(remaining, incumbent, open_bounds)
        except KeyboardInterrupt:
            if incumbent.placed is None and not self.start_groups:
                raise
            self.interrupted = True
        return self.lower(open_bounds, incumbent)

    def is_start(self, partition: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a partition is that of the start, near which a better incumbent is likely."""
        return {frozenset(tasks) for tasks in partition} == self.start_groups

    def rise(self, screened: list[Survivors], incumbent: Incumbent) -> None:
        """Look for a better combination just above the bounds, with ever higher cutoffs: low ones cost little."""
        known = incumbent.objective
        lowest = min(left.bound for left in screened) * (1.0 + self.gap) * self.problem.least_price
        for slack in RISING_SLACKS:
            cutoff = min(known, (1.0 + slack) * lowest)
            incumbent.objective = cutoff
            try:
                near = [replace(left) for left in screened]
                self.explore([left for left in near if left.tighten(self.limit(incumbent))], incumbent, {})
            finally:
                found = incumbent.objective < cutoff
                if not found:
                    incumbent.objective = known
            if found or cutoff == known or self.timed_out:
                break

    def limit(self, incumbent: Incumbent) -> float:
        """Bounds from here on cannot win."""
        return self.cutoff(incumbent) * (1 - SAFETY)

    def cutoff(self, incumbent: Incumbent) -> float:
        """Seconds that a step must undercut to be better by more than the gap, at the least price that is searched."""
        return incumbent.objective / (1.0 + self.gap) / self.problem.least_price

    def remove(self, partition: Partition, number: int, reason: str, bound: float, group: tuple[int, ...] = ()) -> None:
        """Note what of a partition cannot win."""
        self.removals.append(
            Removal(
                partition=partition_name(self.problem, partition),
                group=partition_name(self.problem, [group]),
                number=number,
                reason=reason,
                bound_seconds=bound,
            )
        )

    def remove_vectors(self, left: Survivors, incumbent: Incumbent) -> None:
        """Note the vectors that no plan better than the incumbent uses, by group."""
        for tasks, vectors in zip(left.partition, left.vectors, strict=True):
            number = len(self.problem.space.vectors) - len(vectors)
            if number:
                self.remove(left.partition, number, SOME_VECTORS, self.limit(incumbent), tasks)

    def explore(self, screened: list[Survivors], incumbent: Incumbent, open_bounds: dict[int, float]) -> None:
        """Work out all columns that are left, and search every partition's combinations."""
        final = bool(open_bounds)
        needed = NeededGroups()
        for left in screened:
            need_columns(self.problem, self.bounds, left, self.cutoff(incumbent), needed)
        self.count("groups_costed", needed.number)
        columns: dict[tuple[int, ...], dict[int, list[Column]]] = {}
        for vector, groups in needed.limits.items():
            counts = tuple(int(each) for each in self.problem.space.vectors[vector])
            for tasks, found in self.maker.make(counts, groups, needed.cutoffs[vector]).items():
                columns.setdefault(tasks, {})[vector] = found
            if self.stop():
                return
        numbers = {partition: number for number, partition in enumerate(self.problem.space.partitions)}
        for left in screened:
            groups_of = [
                [column for vector in vectors for column in columns.get(tasks, {}).get(int(vector), [])]
                for tasks, vectors in zip(left.partition, left.vectors, strict=True)
            ]
            one = ColumnSearch(self.problem, groups_of, left.prices, incumbent, 1.0 + self.gap, self.stop)
            one.run()
            self.count("nodes", one.num_nodes)
            if one.stopped:
                return
            if final:
                self.searched.append((left.partition, sum(map(len, groups_of)), one))
                open_bounds[numbers[left.partition]] = math.inf
                self.report(open_bounds, incumbent)

    def lower(self, open_bounds: dict[int, float], incumbent: Incumbent) -> float:
        """Bound of the whole space: what is still open, or the incumbent."""
        return min(max(self.floor, min(open_bounds.values())), incumbent.objective / (1.0 + self.gap))

    def report(self, open_bounds: dict[int, float], incumbent: Incumbent) -> None:
        """Tell the caller how far the proof is."""
        if self.progress is not None and not self.problem.dollars:
            lower = self.lower(open_bounds, incumbent)
            self.progress(lower, incumbent.objective, incumbent.objective / lower - 1.0 if lower > 0 else math.inf)

    def certificate(self, incumbent: Incumbent, space: DeclaredSpace) -> Certificate | None:
        """Certificate over the columns that can still win against the final incumbent."""
        assert self.mip is not None
        columns: dict[int, Column] = {}
        for partition, number, one in self.searched:
            left = (
                [column for group in one.groups for column in group] if one.bound < one.limit and one.filter() else []
            )
            columns.update({id(column): column for column in left})
            self.remove(partition, number - len(left), SOME_COLUMNS, one.limit)
        self.counts["certificate_columns"] = len(columns)
        return make_certificate(self.problem, space, incumbent, list(columns.values()), self.removals, self.mip)

    def best_canonical(self, seed: Plan | None, incumbent: Incumbent) -> Plan:
        """Return the best plan on the real links: the start, or canonical placements of the best combinations."""
        ranked = sorted(incumbent.evaluated.values(), key=lambda each: each[1])[:NUM_PLACED]
        plans = [seed] if seed is not None else []
        for columns, _, _ in ranked:
            plans += list(islice(canonical_plans(self.problem, columns), MOST_PLACEMENTS))
        costs = [evaluate(self.job, plan, self.costs).step_seconds for plan in plans]
        self.counts["placements_evaluated"] = len(plans)
        return plans[int(np.argmin(costs))]

    def count(self, name: str, number: int) -> None:
        """Add to the counts."""
        self.counts[name] = self.counts.get(name, 0) + number

    def result(self, seed: Plan | None, seed_objective: float, incumbent: Incumbent, lower: float) -> ExactResult:
        """Evaluate the plan with the readable evaluator, and put everything together."""
        problem = self.problem
        counts = {
            **self.counts,
            "task_bounds": self.bounds.num_worked_out,
            "fronts": self.maker.num_fronts,
            "front_options": self.maker.num_options,
            "columns": self.maker.num_columns,
            "column_overflows": self.maker.num_overflows,
            "combinations_evaluated": incumbent.num_evaluated,
            "options_costed": problem.finder.num_costed,
        }
        space = problem.space.describe()
        stopped = self.timed_out or self.interrupted or self.maker.num_overflows > 0
        if incumbent.placed is None:
            if stopped and seed is not None:
                estimate = evaluate(self.job, seed, self.costs)
                return ExactResult(
                    status="feasible",
                    plan=seed,
                    estimate=estimate,
                    objective=seed_objective,
                    lower_bound=min(lower, seed_objective),
                    space=space,
                    seed_objective=seed_objective,
                    counts=counts,
                    stopped_by_time=self.timed_out,
                    interrupted=self.interrupted,
                )
            message, reasons = explain_infeasible(problem.context)
            return ExactResult(
                status="infeasible",
                plan=None,
                estimate=None,
                objective=math.inf,
                lower_bound=math.inf,
                space=space,
                counts=counts,
                message=message,
                reasons=tuple(reasons),
            )
        plan = self.best_canonical(seed, incumbent) if problem.space.best_links else incumbent.placed.plan(problem)
        estimate = evaluate(self.job, plan, self.costs)
        objective = estimate.usd_per_step if problem.dollars else estimate.step_seconds
        differs = problem.space.best_links  # the bound is for other links than the plan's
        if objective is None or (not differs and abs(objective - incumbent.objective) > 1e-9 * incumbent.objective):
            raise RuntimeError(f"solver and evaluator disagree: {incumbent.objective!r} and {objective!r}")
        start = [] if seed is None else [seed]
        known = min([plan, *start], key=lambda each: objective_of(self.job, evaluate(self.job, each, self.costs)))
        plan = self.unless_interrupted(  # level 5 is outside the space
            lambda: improved(NodeRules(problem.context), [plan, *start])[0], known
        )
        estimate = evaluate(self.job, plan, self.costs)
        proven = not stopped and not problem.space.best_links
        if not proven:
            objective = min(objective, objective_of(self.job, estimate))
        wanted = not self.interrupted and proven and self.mip is not None and not problem.dollars and self.gap == 0.0
        certificate = self.unless_interrupted(lambda: self.certificate(incumbent, space) if wanted else None, None)
        return ExactResult(
            status="optimal" if proven else "feasible",
            plan=plan,
            estimate=estimate,
            objective=objective,
            lower_bound=min(lower, objective),
            space=space,
            seed_objective=seed_objective,
            counts=counts,
            stopped_by_time=self.timed_out,
            interrupted=self.interrupted,
            certificate=certificate,
        )
