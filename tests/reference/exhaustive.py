"""The best step of a declared space by enumeration, with the readable evaluator's parts and no pruning at all.

For every partition of the tasks, every way to give the groups device vectors and to pack them into nodes, every
combination of every declared option is looked at: memory in every interval of every node, then seconds. Only equal
entries are merged. What is taken from the solver under test is the declaration of the space: vectors, packings, and the
options as settings; their memory and seconds are worked out anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.evaluate import SYNC_PREFIX, task_estimate
from hetrl.cost.generation import in_flight_tokens, replica_generation
from hetrl.cost.residency import device_limit, task_memory
from hetrl.cost.transfers import data_transfer, switch_seconds, weight_sync
from hetrl.plan.plan import Residency, TaskPlan
from hetrl.search.context import ENGINE_CONCURRENCY
from hetrl.search.exact.problem import ExactProblem, declared_options
from hetrl.search.exact.space import Vector, packings
from hetrl.search.level3_colocation import task_plan
from hetrl.spec.devices import DTYPE_BYTES
from hetrl.workload.memory import kv_bytes_per_token
from tests.reference.step_grid import Floats, GridActivity, step_grid

Ints = NDArray[np.int64]
MAX_GROUP_COMBINATIONS = 30_000
MAX_COMBINATIONS = 600_000
"""Combinations of options inside groups, and of everything: more is refused."""


class TooLarge(Exception):
    """The instance has more combinations than an enumeration can look at."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One option of one task: the plan on canonical nodes, seconds, and the fullest device's bytes on every node."""

    plan: TaskPlan
    seconds: float
    active: Floats
    idle: Floats
    sync: Floats
    host: Floats
    used: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GroupTable:
    """All feasible combinations of a group on a vector: per task its seconds and which distinct plan it has."""

    tasks: tuple[int, ...]
    seconds: Floats  # [combinations, tasks]
    plan_index: Ints  # [combinations, tasks]
    plans: tuple[tuple[Piece, ...], ...]  # per task
    host: Floats  # [combinations, nodes]


@dataclass
class Enumeration:
    """The best step, and how many combinations were looked at."""

    seconds: float = math.inf
    groups: int = 0
    combinations: int = 0
    notes: list[str] = field(default_factory=list)


class Exhaustive:
    """Enumerates the declared space of one problem."""

    def __init__(self, problem: ExactProblem) -> None:
        self.problem = problem
        self.job = problem.job
        self.costs = problem.costs
        self.tasks = problem.job.workflow.tasks
        self.topology = problem.job.topology
        self.num_nodes = len(self.topology.nodes)
        self.of_nodes = [
            range(first, first + node.num_devices)
            for first, node in zip(self.topology.first_device, self.topology.nodes, strict=False)
        ]
        self.limits = np.array([device_limit(self.job, self.topology.first_device[n]) for n in range(self.num_nodes)])
        self.host_limits = np.array([float(node.host_ram_bytes) for node in self.topology.nodes])
        self.tables: dict[tuple[tuple[int, ...], Vector], GroupTable | None] = {}
        self.pieces: dict[tuple[int, Vector], tuple[Piece, ...]] = {}
        self.may_drop = not self.job.optimizer.executable  # the runtime keeps engines loaded
        self.bare: dict[tuple[TaskPlan, str], Piece] = {}
        self.engine_seconds: dict[tuple[TaskPlan, tuple[float, ...]], float] = {}
        self.result = Enumeration()

    def run(self) -> Enumeration:
        """Look at everything."""
        space = self.problem.space
        vectors = [tuple(int(each) for each in row) for row in space.vectors]
        if self.group_combinations(vectors) > MAX_GROUP_COMBINATIONS:
            raise TooLarge
        for partition in space.partitions:
            for chosen in self.assignments(partition, vectors, tuple(int(each) for each in space.capacity)):
                tables = [self.table(group, vector) for group, vector in zip(partition, chosen, strict=True)]
                if all(table is not None and len(table.seconds) for table in tables):
                    self.evaluate([table for table in tables if table is not None], chosen)
        return self.result

    def group_combinations(self, vectors: Sequence[Vector]) -> int:
        """Combinations of options in all groups on all vectors, those that share weights not counted."""
        groups = {group for partition in self.problem.space.partitions for group in partition}
        numbers = {
            (task, vector): len(declared_options(self.problem, task, vector))
            for task in range(len(self.tasks))
            for vector in vectors
        }
        return sum(math.prod(numbers[task, vector] for task in group) for group in groups for vector in vectors)

    def assignments(
        self, groups: Sequence[tuple[int, ...]], vectors: Sequence[Vector], left: tuple[int, ...]
    ) -> Iterator[tuple[Vector, ...]]:
        """Vectors of all groups within the capacity."""
        if not groups:
            yield ()
            return
        for vector in vectors:
            rest = tuple(have - want for have, want in zip(left, vector, strict=True))
            if min(rest) >= 0:
                for others in self.assignments(groups[1:], vectors, rest):
                    yield (vector, *others)

    # --- single tasks ----------------------------------------------------------------------------------------------

    def options(self, task: int, vector: Vector) -> tuple[Piece, ...]:
        """Every declared option of a training or scoring task."""
        key = (task, vector)
        if key not in self.pieces:
            found = declared_options(self.problem, task, vector)
            self.pieces[key] = tuple(self.piece(task, self.plan_of(option)) for option in found)
        return self.pieces[key]

    def plan_of(self, option: object) -> TaskPlan:
        """An option on the first devices of its canonical nodes."""
        return task_plan(self.problem.context, option, self.of_nodes, option.shares(), keep_idle=True)  # type: ignore[arg-type, attr-defined]

    def sharing(self, task: int, trainer: Piece) -> tuple[Piece, ...]:
        """Scoring with the weights of the train task: its stages, at every micro-batch of scoring."""
        if trainer.plan.sharding == "fsdp" or trainer.plan.residency.weights_when_idle != "resident":
            return ()
        base = replace(
            trainer.plan,
            task=self.tasks[task].name,
            sharding="none",
            recompute=False,
            residency=Residency(weights_when_idle="shared"),
        )
        return tuple(self.best_shares(task, replace(base, micro_batch_size=size)) for size in (1, 4, 16))

    def best_shares(self, task: int, plan: TaskPlan) -> Piece:
        """The plan with the shares whose slowest replica is fastest, by trying every threshold."""
        total = self.job.batch.num_prompts
        table = [
            [
                self.seconds_of(task, replace(plan, replicas=(replace(replica, num_prompts=share),)))
                for share in range(1, total + 1)
            ]
            for replica in plan.replicas
        ]
        shares = threshold_fill(table, total)
        replicas = tuple(
            replace(replica, num_prompts=share) for replica, share in zip(plan.replicas, shares, strict=True)
        )
        return self.piece(task, replace(plan, replicas=replicas))

    def seconds_of(self, task: int, plan: TaskPlan) -> float:
        """Seconds of scoring, transfers of its state aside."""
        return task_estimate(self.job, self.tasks[task], plan, self.costs, ()).compute_seconds

    def piece(self, task: int, plan: TaskPlan, seconds: float | None = None) -> Piece:
        """Work out seconds and memory; memory as if any replica could get all prompts."""
        total = self.job.batch.num_prompts
        kept = tuple(replica for replica in plan.replicas if replica.num_prompts)
        if seconds is None:
            timed = plan if self.tasks[task].kind == "train" else replace(plan, replicas=kept)
            seconds = task_estimate(self.job, self.tasks[task], timed, self.costs, ()).seconds
        whole = replace(plan, replicas=tuple(replace(replica, num_prompts=total) for replica in plan.replicas))
        active, idle, sync, host = (np.zeros(self.num_nodes) for _ in range(4))
        used = [0] * self.num_nodes
        for device, rank in task_memory(self.job, self.tasks[task], whole).items():
            node = self.topology.devices[device].node
            used[node] += 1
            active[node] = max(active[node], rank.active_bytes)
            idle[node] = max(idle[node], rank.idle_bytes)
            sync[node] = max(sync[node], rank.sync_bytes)
            host[node] += rank.host
        return Piece(plan=plan, seconds=seconds, active=active, idle=idle, sync=sync, host=host, used=tuple(used))

    # --- groups ----------------------------------------------------------------------------------------------------

    def table(self, group: tuple[int, ...], vector: Vector) -> GroupTable | None:
        """All combinations of a group's options that fit on a vector's canonical placement."""
        key = (group, vector)
        if key not in self.tables:
            self.tables[key] = self.make_table(group, vector)
        return self.tables[key]

    def make_table(self, group: tuple[int, ...], vector: Vector) -> GroupTable | None:
        others = [task for task in group if self.tasks[task].kind != "generate"]
        engines = [task for task in group if self.tasks[task].kind == "generate"]
        rows: dict[tuple[object, ...], tuple[list[float], list[int], Floats]] = {}
        plans: list[dict[TaskPlan, int]] = [{} for _ in group]
        pieces: list[list[Piece]] = [[] for _ in group]

        def keep(chosen: Sequence[Piece]) -> None:
            by_task = {piece.plan.task: piece for piece in chosen}
            ordered = [by_task[self.tasks[task].name] for task in group]
            index = []
            for position, piece in enumerate(ordered):
                known = plans[position]
                if piece.plan not in known:
                    known[piece.plan] = len(known)
                    pieces[position].append(piece)
                index.append(known[piece.plan])
            host = np.sum([piece.host for piece in ordered], axis=0)
            seconds = [piece.seconds for piece in ordered]
            rows.setdefault((*index, *seconds), (seconds, index, host))

        for chosen in self.choices(others, vector):
            self.result.combinations += 1
            if not engines:
                if self.fits(chosen):
                    keep(chosen)
                continue
            for option in declared_options(self.problem, engines[0], vector):
                for weights in ("resident", "dropped") if others and self.may_drop else ("resident",):
                    engine = self.engine(engines[0], self.plan_of(option), weights, chosen)
                    if engine is not None:
                        keep([*chosen, engine])
        self.result.groups += 1
        if not rows:
            return None
        return GroupTable(
            tasks=group,
            seconds=np.array([row[0] for row in rows.values()]),
            plan_index=np.array([row[1] for row in rows.values()]),
            plans=tuple(tuple(each) for each in pieces),
            host=np.array([row[2] for row in rows.values()]),
        )

    def choices(self, tasks: Sequence[int], vector: Vector) -> Iterator[list[Piece]]:
        """Every combination of options, those that share a train task's weights included."""
        trainers = [task for task in tasks if self.tasks[task].kind == "train"]
        scorers = [task for task in tasks if self.tasks[task].kind == "score"]
        for trained in product(*[self.options(task, vector) for task in trainers]):
            lists = []
            for task in scorers:
                mine = list(self.options(task, vector))
                for trainer, piece in zip(trainers, trained, strict=True):
                    if self.tasks[trainer].role == self.tasks[task].role:
                        mine += self.sharing(task, piece)
                lists.append(mine)
            for scored in product(*lists):
                yield [*trained, *scored]

    def fits(self, chosen: Sequence[Piece]) -> bool:
        """Whether every interval holds on every node, and the hosts hold this group."""
        idle = np.sum([piece.idle for piece in chosen], axis=0)
        if (np.sum([piece.host for piece in chosen], axis=0) > self.host_limits).any():
            return False
        if (np.sum([piece.sync for piece in chosen], axis=0) > self.limits).any():
            return False
        return all((idle - piece.idle + piece.active <= self.limits).all() for piece in chosen)

    def engine(self, task: int, plan: TaskPlan, weights: str, beside: Sequence[Piece]) -> Piece | None:
        """An engine with its KV pools in the room that the rest of its group leaves; None if too little."""
        plan = replace(plan, residency=Residency(weights_when_idle=weights), micro_batch_size=ENGINE_CONCURRENCY)
        if (plan, weights) not in self.bare:
            self.bare[plan, weights] = self.piece(task, plan, seconds=0.0)
        bare = self.bare[plan, weights]
        if not self.fits([*beside, bare]):
            return None
        idle = np.sum([np.zeros(self.num_nodes), *(piece.idle for piece in beside)], axis=0)
        room = self.limits - idle - bare.active
        if weights == "resident":
            for piece in beside:
                busy = idle - piece.idle + np.maximum(piece.active, piece.sync)
                room = np.minimum(room, self.limits - busy - bare.active)
        tokens = self.kv_tokens(task, plan, room)
        if min(tokens) < self.job.batch.max_sequence_tokens:
            return None
        if (plan, tokens) not in self.engine_seconds:
            self.engine_seconds[plan, tokens] = self.time_engine(task, plan, tokens)
        return replace(bare, seconds=self.engine_seconds[plan, tokens])

    def kv_tokens(self, task: int, plan: TaskPlan, room: Floats) -> tuple[float, ...]:
        """Tokens of every replica's KV pool in the room that a device of every node has."""
        batch = self.job.batch
        per_prompt = self.tasks[task].sequences_per_prompt
        useful = max(ENGINE_CONCURRENCY * in_flight_tokens(batch, per_prompt), float(batch.max_sequence_tokens))
        found = []
        for replica in plan.replicas:
            tokens, first = useful, 0
            for stage in replica.stages:
                held = kv_bytes_per_token(
                    self.tasks[task].model,
                    first_layer=first,
                    num_layers=stage.num_layers,
                    tensor_parallel=stage.tensor_parallel,
                    bytes_per_element=DTYPE_BYTES[self.job.precision.kv_cache_dtype],
                )
                first += stage.num_layers
                tokens = min(tokens, math.floor(room[self.topology.devices[stage.devices[0]].node] / held))
            found.append(float(tokens))
        return tuple(found)

    def time_engine(self, task: int, plan: TaskPlan, tokens: tuple[float, ...]) -> float:
        """Seconds with the best shares of the replicas."""
        total = self.job.batch.num_prompts
        table = [
            [
                replica_generation(
                    self.costs,
                    self.topology,
                    self.job.batch,
                    self.tasks[task],
                    plan,
                    replace(replica, num_prompts=share),
                    held,
                ).seconds
                for share in range(1, total + 1)
            ]
            for replica, held in zip(plan.replicas, tokens, strict=True)
        ]
        shares = threshold_fill(table, total)
        seconds = max(row[share - 1] for row, share in zip(table, shares, strict=True) if share)
        whole = replace(plan, replicas=tuple(replace(each, num_prompts=total) for each in plan.replicas))
        return seconds + switch_seconds(
            self.job, self.tasks[task], whole, task_memory(self.job, self.tasks[task], whole)
        )

    # --- whole steps -----------------------------------------------------------------------------------------------

    def evaluate(self, tables: Sequence[GroupTable], vectors: Sequence[Vector]) -> None:
        """Step time of every combination of the groups' entries, on every packing."""
        size = math.prod(len(table.seconds) for table in tables)
        for maps in packings(self.problem.space, vectors):
            self.result.combinations += size
            if self.result.combinations > MAX_COMBINATIONS:
                raise TooLarge
            step = step_grid(self.activities(tables, maps), self.job.staleness)
            step = np.broadcast_to(step, [len(table.seconds) for table in tables]).copy()
            step[~self.hosts_fit(tables, maps)] = math.inf
            self.result.seconds = min(self.result.seconds, float(step.min()))

    def hosts_fit(self, tables: Sequence[GroupTable], maps: Sequence[Ints]) -> NDArray[np.bool_]:
        fits = np.ones([1] * len(tables), dtype=np.bool_)
        for node in range(self.num_nodes):
            total = np.zeros([1] * len(tables))
            for axis, (table, to) in enumerate(zip(tables, maps, strict=True)):
                here = [canonical for canonical in range(self.num_nodes) if to[canonical] == node]
                total = total + along(table.host[:, here].sum(axis=1), axis, len(tables))
            fits = fits & (total <= self.host_limits[node])
        return np.broadcast_to(fits, [len(table.seconds) for table in tables])

    def activities(self, tables: Sequence[GroupTable], maps: Sequence[Ints]) -> list[GridActivity]:
        """Tasks and weight syncs with their transfers, as `hetrl.cost.evaluate.plan_activities` defines them."""
        where = {task: (axis, table.tasks.index(task)) for axis, table in enumerate(tables) for task in table.tasks}
        activities = []
        for index, task in enumerate(self.tasks):
            axis, position = where[index]
            needs = tuple(
                (need, self.pairs(self.job.workflow.index(need), index, where, tables, maps, sync=False))
                for need in task.needs
            )
            activities.append(
                GridActivity(
                    name=task.name,
                    seconds=along(tables[axis].seconds[:, position], axis, len(tables)),
                    groups=(axis,),
                    needs=needs,
                )
            )
        for source, trainer in enumerate(self.tasks):
            for target, other in enumerate(self.tasks):
                if trainer.kind != "train" or other.kind == "train" or other.role != trainer.role:
                    continue
                seconds = self.pairs(source, target, where, tables, maps, sync=True)
                axes = tuple(sorted({where[source][0], where[target][0]}))
                none = np.zeros([1] * len(tables))
                activities.append(
                    GridActivity(
                        name=SYNC_PREFIX + other.name,
                        seconds=seconds,
                        groups=axes,
                        needs=((trainer.name, none), (other.name, none)),
                    )
                )
        return activities

    def pairs(
        self,
        source: int,
        target: int,
        where: dict[int, tuple[int, int]],
        tables: Sequence[GroupTable],
        maps: Sequence[Ints],
        *,
        sync: bool,
    ) -> Floats:
        """Seconds of a transfer or sync on the grid, worked out once for every pair of distinct plans."""
        (a, i), (b, j) = where[source], where[target]
        seconds = np.array(
            [
                [
                    self.moved(source, self.placed(first, maps[a]), target, self.placed(second, maps[b]), a == b, sync)
                    for second in tables[b].plans[j]
                ]
                for first in tables[a].plans[i]
            ]
        )
        left, right = tables[a].plan_index[:, i], tables[b].plan_index[:, j]
        if a == b:
            return along(seconds[left, right], a, len(tables))
        shape = [1] * len(tables)
        shape[a], shape[b] = len(left), len(right)
        grid = seconds[np.ix_(left, right)]
        return (grid if a < b else grid.T).reshape(shape)

    def moved(self, source: int, first: TaskPlan, target: int, second: TaskPlan, together: bool, sync: bool) -> float:
        if sync:
            if second.residency.weights_when_idle == "shared":
                return 0.0
            return weight_sync(
                self.job, self.costs.model, self.tasks[source], first, self.tasks[target], second
            ).seconds
        same = together and sorted(first.devices) == sorted(second.devices)
        return data_transfer(self.job, self.tasks[source], first, self.tasks[target], second, same_devices=same).seconds

    def placed(self, piece: Piece, to: Ints) -> TaskPlan:
        """The plan on the nodes of a packing."""
        return replace(
            piece.plan,
            replicas=tuple(
                replace(
                    replica,
                    stages=tuple(
                        replace(stage, devices=tuple(self.moved_device(device, to) for device in stage.devices))
                        for stage in replica.stages
                    ),
                )
                for replica in piece.plan.replicas
            ),
        )

    def moved_device(self, device: int, to: Ints) -> int:
        node = self.topology.devices[device].node
        return int(self.topology.first_device[int(to[node])] + device - self.topology.first_device[node])


def along(values: Floats, axis: int, num_axes: int) -> Floats:
    """Values along one axis of the grid."""
    shape = [1] * num_axes
    shape[axis] = -1
    return np.asarray(values, dtype=np.float64).reshape(shape)


def threshold_fill(seconds: Sequence[Sequence[float]], total: int) -> list[int]:
    """Shares that add up to ``total`` with the smallest possible slowest entry, all thresholds tried in order.

    Parameters
    ----------
    seconds
        Per replica its seconds with 1, 2, ... ``total`` prompts.

    >>> threshold_fill([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], 3)
    [2, 1]
    """
    for threshold in sorted({each for row in seconds for each in row}):
        room = [max((n for n, each in enumerate(row, start=1) if each <= threshold), default=0) for row in seconds]
        if sum(room) >= total:
            surplus = sum(room) - total
            shares = []
            for most in room:
                less = min(surplus, most)
                shares.append(most - less)
                surplus -= less
            return shares
    raise ValueError("no threshold holds all prompts")
