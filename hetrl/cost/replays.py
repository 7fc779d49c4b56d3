"""Monte-Carlo replays of a plan: how long its steps take when lengths, devices and links vary.

A scenario draws every response's length from the job's distribution, and if asked for a slow-down of every device and
of every transfer. Decoding is replayed with the drawn lengths (`hetrl_kernels.sweeps`); training and scoring follow the
mean length of each replica's own sequences, between unit costs at several means; the step is put together by the
schedule recurrence in the order of the plan's own schedule. Without any spread the evaluator's composition comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import SYNC_PREFIX, evaluate, plan_activities
from hetrl.cost.generation import concurrency, decode_iteration_seconds, prefill_seconds
from hetrl.cost.residency import task_memory
from hetrl.cost.schedule import Activity
from hetrl.cost.scoring import replica_scoring_seconds
from hetrl.cost.stages import placed_stages, replica_class
from hetrl.cost.training import compose_training, replica_training
from hetrl.cost.transfers import switch_seconds
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Plan, Replica, TaskPlan
from hetrl.spec.job import Batch, Job
from hetrl.spec.workflow import Task

Array = NDArray[np.float64]
Lengths = NDArray[np.int64]
Figure = TypeVar("Figure")

MEAN_SHARES = (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Mean response lengths, relative to the job's, at which training and scoring are costed beside the job's own, one
token and the longest; linear in between."""
NUM_CONTEXTS = 17
CHUNK = 64
"""Scenarios drawn at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much devices and links vary: standard deviations of the logarithms of their slow-downs."""

    devices: float = 0.0
    links: float = 0.0


def replayed_steps(
    job: Job, plan: Plan, costs: UnitCosts, *, num_scenarios: int, seed: int = 0, spread: Spread | None = None
) -> Array:
    """Step seconds (periods, with staleness) of a feasible plan in every scenario, ``[num_scenarios]``.

    Equal seeds give equal bits. The first scenarios of a longer sweep are those of a shorter one.
    """
    estimate = evaluate(job, plan, costs)
    if not estimate.feasible:
        raise ValueError("only plans that fit can be replayed")
    replays = [_replay_of(job, job.workflow.task(each.task), each, costs, estimate) for each in plan.tasks]
    activities = plan_activities(job, plan, dict.fromkeys(estimate.tasks, 0.0), estimate.transfers)
    rng = np.random.default_rng(seed)
    steps: list[Array] = []
    while CHUNK * len(steps) < num_scenarios:
        draw = _draw(job, rng, spread or Spread())
        seconds = {replay.name: replay.seconds(draw) for replay in replays}
        moved = {(each.source, each.target): each.seconds * draw.slow_link() for each in estimate.transfers}
        seconds |= {
            SYNC_PREFIX + each.target: moved[each.source, each.target]
            for each in estimate.transfers
            if each.kind == "weights"
        }
        steps.append(compose_steps(activities, list(estimate.schedule.start), seconds, moved, job.staleness))
    return np.concatenate(steps)[:num_scenarios]


class Draw:
    """What varies in `CHUNK` scenarios.

    Parameters
    ----------
    lengths
        Response lengths, ``[M, prompts, responses]``.
    devices
        Slow-downs, ``[M, devices]``.
    rng, link_spread
        For the slow-downs of movements.
    """

    def __init__(self, lengths: Lengths, devices: Array, rng: np.random.Generator, link_spread: float) -> None:
        self.lengths = lengths
        self.devices = devices
        self._rng = rng
        self._link_spread = link_spread

    def slow_link(self) -> Array:
        """Slow-down of one movement, ``[M]``; every call draws another."""
        return np.exp(self._link_spread * self._rng.standard_normal(CHUNK))

    def slow(self, devices: Sequence[int]) -> Array:
        """Slow-down of the slowest of some devices, ``[M]``."""
        return np.asarray(self.devices[:, list(devices)].max(axis=1))


def _draw(job: Job, rng: np.random.Generator, spread: Spread) -> Draw:
    responses = max(task.sequences_per_prompt for task in job.workflow.tasks)
    uniform = rng.random((CHUNK, job.batch.num_prompts, responses))
    devices = np.exp(spread.devices * rng.standard_normal((CHUNK, job.topology.num_devices)))
    return Draw(response_lengths(job.batch, uniform), devices, rng, spread.links)


def response_lengths(batch: Batch, uniform: Array) -> Lengths:
    """Response lengths at quantiles of the distribution whose survival function generation uses."""
    if batch.response_histogram:
        pairs = sorted(batch.response_histogram)
        lengths = np.array([length for length, _ in pairs])
        weights = np.array([weight for _, weight in pairs])
        return np.asarray(lengths[np.searchsorted(np.cumsum(weights) / weights.sum(), uniform, side="right")])
    longest = batch.max_response_tokens
    if batch.mean_response_tokens >= longest:
        return np.full(uniform.shape, longest)
    drawn = longest * uniform ** ((longest - batch.mean_response_tokens) / batch.mean_response_tokens)
    return np.maximum(np.rint(drawn).astype(np.int64), 1)


def compose_steps(
    activities: Sequence[Activity],
    order: Sequence[str],
    seconds: Mapping[str, Array],
    transfers: Mapping[tuple[str, str], Array],
    staleness: int,
) -> Array:
    """Compose many steps (or periods) at once: `replay` and `asynchronous_period` over arrays of scenarios."""
    by_name = {activity.name: activity for activity in activities}
    nothing = np.zeros(CHUNK)
    if staleness > 0:
        load: dict[int, Array] = {}
        latest: dict[str, Array] = {}
        for activity in activities:
            for group in activity.groups:
                load[group] = load.get(group, nothing) + seconds[activity.name]
            ready = [latest[need] + transfers.get((need, activity.name), nothing) for need, _ in activity.needs]
            latest[activity.name] = np.max(ready, axis=0, initial=0.0) + seconds[activity.name]
        loop = np.max(list(latest.values()), axis=0)
        return np.asarray(np.maximum(np.max(list(load.values()), axis=0), loop / (1 + staleness)))
    end: dict[str, Array] = {}
    free: dict[int, Array] = {}
    for name in order:
        activity = by_name[name]
        begin = nothing
        for need, _ in activity.needs:
            begin = np.maximum(begin, end[need] + transfers.get((need, name), nothing))
        for group in activity.groups:
            begin = np.maximum(begin, free.get(group, nothing))
        end[name] = begin + seconds[name]
        free.update(dict.fromkeys(activity.groups, end[name]))
    return np.asarray(np.max(list(end.values()), axis=0))


class _Replay:
    """One task of the plan, ready for any draw."""

    def __init__(self, job: Job, task: Task, plan: TaskPlan, costs: UnitCosts) -> None:
        self.job, self.task, self.plan, self.costs = job, task, plan, costs
        self.name = task.name
        self.switch = switch_seconds(job, task, plan, task_memory(job, task, plan))
        first = np.cumsum([0, *(replica.num_prompts for replica in plan.replicas)]).tolist()
        self.prompts = [slice(*pair) for pair in pairwise(first)]
        lowest, highest = (tokens / job.batch.mean_response_tokens for tokens in (1, job.batch.max_response_tokens))
        inside = [share for share in MEAN_SHARES if lowest < share < highest]
        self.means = sorted({lowest, *inside, 1.0, highest})

    def seconds(self, draw: Draw) -> Array:
        """Seconds of the task, ``[M]``."""
        raise NotImplementedError

    def lengths(self, draw: Draw, replica: int) -> Lengths:
        """Lengths of the replica's own sequences, ``[M, n]``."""
        own = draw.lengths[:, self.prompts[replica], : self.task.sequences_per_prompt]
        return own.reshape(len(own), -1)

    def mean_share(self, draw: Draw, replica: int) -> Array:
        """Mean length of the replica's sequences relative to the job's, ``[M]``."""
        return np.asarray(self.lengths(draw, replica).mean(axis=1) / self.job.batch.mean_response_tokens)

    def of_replicas(self, curve: Callable[[Replica], list[Figure]]) -> list[list[Figure]]:
        """Return a curve over the means for every replica; equal replicas are worked out once."""
        known: dict[object, list[Figure]] = {}
        for replica in self.plan.replicas:
            key = replica_class(self.job.topology, replica)
            if key not in known:
                known[key] = curve(replica)
        return [known[replica_class(self.job.topology, replica)] for replica in self.plan.replicas]

    def batches(self) -> list[Batch]:
        """Return the batch at every mean."""
        mean = self.job.batch.mean_response_tokens
        return [replace(self.job.batch, mean_response_tokens=mean * share) for share in self.means]


class _Generate(_Replay):
    def __init__(self, job: Job, task: Task, plan: TaskPlan, costs: UnitCosts, kv_tokens: Sequence[float]) -> None:
        super().__init__(job, task, plan, costs)
        known: dict[object, tuple[Array, float]] = {}
        self.engines = []
        for replica, tokens in zip(plan.replicas, kv_tokens, strict=True):
            key = (replica_class(job.topology, replica), tokens)
            if key not in known and replica.num_prompts:
                known[key] = self._engine(replica, tokens)
            self.engines.append(known.get(key))

    def _engine(self, replica: Replica, kv_tokens: float) -> tuple[Array, float]:
        """Return iteration seconds ``[active, context]``, and seconds of the prefill."""
        job, batch, costs = self.job, self.job.batch, self.costs
        sequences = replica.num_prompts * self.task.sequences_per_prompt
        slots = concurrency(batch, self.task, self.plan, sequences, kv_tokens)
        contexts = batch.prompt_tokens + np.linspace(0.0, batch.max_response_tokens, NUM_CONTEXTS)
        active, context = (each.ravel() for each in np.meshgrid(np.arange(1.0, slots + 1), contexts, indexing="ij"))
        stages = placed_stages(job.topology, replica)
        table = decode_iteration_seconds(costs, job.topology, replica, stages, self.task.model, active, context)
        prefill = prefill_seconds(costs, job.topology, batch, self.task, replica, stages)
        return np.ascontiguousarray(table.reshape(slots, NUM_CONTEXTS)), prefill

    def seconds(self, draw: Draw) -> Array:
        from hetrl_kernels.sweeps import replay_decoding  # imports Numba

        slowest = np.zeros(CHUNK)
        for number, (replica, engine) in enumerate(zip(self.plan.replicas, self.engines, strict=True)):
            if engine is None:
                continue
            table, prefill = engine
            lengths = np.ascontiguousarray(self.lengths(draw, number))
            composed, iterations = replay_decoding(lengths, table, self.job.batch.max_response_tokens)
            tokens = lengths.sum(axis=1)
            decode = np.zeros(CHUNK)
            for kind in {self.job.topology.devices[stage.devices[0]].type.name for stage in replica.stages}:
                calibration = self.costs.model.calibration(kind, "generate")
                decode = np.maximum(
                    decode, calibration.seconds(composed, iterations, tokens)
                )  # linear, so for arrays too
            slowest = np.maximum(slowest, (prefill + decode) * draw.slow(replica.devices))
        return slowest + self.switch


class _Score(_Replay):
    def __init__(self, job: Job, task: Task, plan: TaskPlan, costs: UnitCosts) -> None:
        super().__init__(job, task, plan, costs)
        self.curves = self.of_replicas(
            lambda replica: [
                replica_scoring_seconds(costs, job.topology, batch, task, plan, replica) for batch in self.batches()
            ]
        )

    def seconds(self, draw: Draw) -> Array:
        slowest = np.zeros(CHUNK)
        for number, (replica, curve) in enumerate(zip(self.plan.replicas, self.curves, strict=True)):
            if replica.num_prompts:
                own = np.interp(self.mean_share(draw, number), self.means, curve)
                slowest = np.maximum(slowest, own * draw.slow(replica.devices))
        return slowest + self.switch


class _Train(_Replay):
    def __init__(self, job: Job, task: Task, plan: TaskPlan, costs: UnitCosts) -> None:
        super().__init__(job, task, plan, costs)
        found = self.of_replicas(
            lambda replica: [
                replica_training(costs, job.topology, batch, task, plan, replica) for batch in self.batches()
            ]
        )
        self.pipelines = [[each.pipeline_seconds for each in curve] for curve in found]
        self.old = [[each.old_log_prob_seconds for each in curve] for curve in found]
        nominal = tuple(curve[self.means.index(1.0)] for curve in found)
        self.composed = compose_training(costs, job.topology, job.batch, task, plan, nominal)

    def seconds(self, draw: Draw) -> Array:
        slowest, first = np.zeros(CHUNK), np.zeros(CHUNK)
        for number, replica in enumerate(self.plan.replicas):
            if replica.num_prompts:
                share, slow = self.mean_share(draw, number), draw.slow(replica.devices)
                pipeline = np.interp(share, self.means, self.pipelines[number]) * slow
                slowest = np.maximum(slowest, pipeline)
                first = np.maximum(first, np.interp(share, self.means, self.old[number]) * slow + pipeline)
        updates = self.composed.num_updates
        optimizer = self.composed.optimizer_seconds * draw.slow(self.plan.devices)
        compute = first + (updates - 1) * slowest + updates * optimizer
        return np.asarray(compute + self.composed.communication_seconds * draw.slow_link() + self.switch)


def _replay_of(job: Job, task: Task, plan: TaskPlan, costs: UnitCosts, estimate: Estimate) -> _Replay:
    if task.kind == "generate":
        return _Generate(job, task, plan, costs, estimate.memory.kv_tokens[task.name])
    return _Score(job, task, plan, costs) if task.kind == "score" else _Train(job, task, plan, costs)
