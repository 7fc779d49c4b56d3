"""Bounds and fronts of the exact solver against everything that is declared."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from hetrl.cost.model import CostModel
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES
from hetrl.cost.unit import UnitCosts
from hetrl.search.exact.columns import TaskBounds
from hetrl.search.exact.problem import ExactProblem, declared_options
from hetrl.search.exact.relaxation import Relaxation, first_prices, lagrangian_bound
from hetrl.search.exact.space import packings
from hetrl.search.exact.workers import Workers
from hetrl.search.level5_refine import fastest_layers
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.exact_groups import GroupColumns
from hetrl_kernels.exact_relocation import relocated
from hetrl_kernels.layer_times import replica_seconds
from hetrl_kernels.layouts import Devices
from hetrl_kernels.options import Option


@pytest.fixture(scope="module")
def guide() -> ExactProblem:
    job = benchmark_instance("guideB/Llama-3-8B/PPO")
    return ExactProblem(job, UnitCosts(CostModel.builtin(), job.precision))


def test_lagrangian_bound_holds_for_every_combination() -> None:
    rng = np.random.default_rng(3)
    relaxed = Relaxation(
        num_tasks=4, phase_of=np.array([0, 1, 1, 2], dtype=np.int32), num_phases=3, targets={}, trainers={}
    )
    capacity = np.array([6.0, 5.0])
    for _ in range(20):
        groups = [(0, 3), (1,), (2,)]
        vectors = [rng.integers(0, 5, size=(12, 2)).astype(float) for _ in groups]
        rows = []
        for tasks, held in zip(groups, vectors, strict=True):
            seconds = {task: rng.uniform(1, 2) * 10 / (1 + held.sum(axis=1)) for task in tasks}
            rows.append(relaxed.rows(tasks, seconds, {}, 12))
        best = min(
            (
                relaxed.value(sum(rows[g][i] for g, i in enumerate(chosen)))
                for chosen in itertools.product(range(12), repeat=3)
                if (sum(vectors[g][i] for g, i in enumerate(chosen)) <= capacity).all()
            ),
            default=np.inf,
        )
        bound, prices, values = lagrangian_bound(
            relaxed, rows, vectors, capacity, np.inf, first_prices(relaxed, 2), 200
        )
        assert bound <= best * (1 + 1e-12)
        assert bound == pytest.approx(sum(each.min() for each in values) - prices.devices @ capacity)
        assert bound >= 0.5 * best or np.isinf(best)


def test_relaxed_rows_count_syncs_for_both_groups() -> None:
    relaxed = Relaxation(
        num_tasks=3, phase_of=np.array([0, 1, 1], dtype=np.int32), num_phases=2, targets={1: (0,)}, trainers={}
    )
    alone = relaxed.rows((0,), {0: np.array([5.0])}, {0: np.array([2.0])}, 1)[0]
    assert alone.tolist() == [5.0, 2.0, 0.0]  # its own phase, and the sync in the row of the train task elsewhere
    train = relaxed.rows((1, 2), {1: np.array([3.0]), 2: np.array([4.0])}, {0: np.array([0.0])}, 1)[0]
    assert train.tolist() == [0.0, 7.0, 7.0]
    assert relaxed.value(alone + train) == 5.0 + 9.0
    both = relaxed.rows((0, 1), {0: np.array([5.0]), 1: np.array([3.0])}, {0: np.array([2.0])}, 1)[0]
    assert both.tolist() == [5.0, 5.0, 0.0]


def test_fastest_and_front_are_those_of_all_declared_options(guide: ExactProblem) -> None:
    rng = random.Random(5)
    checked = 0
    for vector in rng.sample([tuple(int(each) for each in row) for row in guide.space.vectors], 12):
        key = guide.space.key(vector)
        for task, each in enumerate(guide.job.workflow.tasks):
            everything = declared_options(guide, task, vector)
            fastest = min((option.seconds for option in everything), default=np.inf)
            assert guide.finder.fastest(task, key) == pytest.approx(fastest, rel=1e-12)
            if not everything or each.kind == "generate":
                continue
            cutoff = 1.3 * fastest
            front = guide.finder.front(task, key, cutoff)
            assert front[0].seconds == pytest.approx(fastest, rel=1e-12)
            assert len(front) <= sum(option.seconds < cutoff for option in everything)
            for option in everything:
                if option.seconds >= cutoff:
                    continue
                mine = option.node_bytes()
                assert any(
                    other.seconds <= option.seconds
                    and all(
                        held <= limit
                        for node, values in other.node_bytes().items()
                        for held, limit in zip(values, mine.get(node, (0.0,) * 4), strict=True)
                    )
                    for other in front
                )
                checked += 1
    assert checked > 500


def test_syncs_are_bounded_by_those_from_every_layout_elsewhere(guide: ExactProblem) -> None:
    rng = random.Random(7)
    names = [task.name for task in guide.job.workflow.tasks]
    engine, trainer = names.index("actor_generate"), names.index("actor_train")
    bounds = TaskBounds(guide, Workers(guide, 1))
    numbers = {tuple(int(each) for each in row): number for number, row in enumerate(guide.space.vectors)}
    checked = 0
    for vector in rng.sample(sorted(numbers), 12):
        rest = tuple(int(all_) - mine for all_, mine in zip(guide.space.capacity, vector, strict=True))
        targets = declared_options(guide, engine, vector)[:6]
        least = guide.finder.least_sync(engine, guide.space.key(vector))
        if rest not in numbers or not targets:
            continue
        assert bounds.syncs[engine][numbers[vector]] <= least * (1 + 1e-12)
        floors = [guide.finder.sync_floor(target) for target in targets]
        assert least <= min(floors) * (1 + 1e-12)
        for maps in packings(guide.space, [vector, rest]):
            here = Devices(guide.kernel_tables, _moved(guide.space.counts(rest), maps[1]))
            for source in declared_options(guide, trainer, rest)[:20]:
                moved = relocated(source, maps[1], here)
                for target, floor in zip(targets, floors, strict=True):
                    there = Devices(guide.kernel_tables, _moved(guide.space.counts(vector), maps[0]))
                    seconds = guide.steps.weight_sync(moved, relocated(target, maps[0], there))
                    assert seconds >= floor * (1 - 1e-12)
                    checked += 1
    assert checked > 200


def _moved(counts: NDArray[np.int32], to: NDArray[np.int32]) -> NDArray[np.int32]:
    here = np.zeros_like(counts)
    here[to[counts > 0]] = counts[counts > 0]
    return here


def test_columns_keep_the_limit_of_all_phases_together(guide: ExactProblem) -> None:
    tasks = tuple(number for number, task in enumerate(guide.job.workflow.tasks) if task.kind == "score")
    vector = tuple(int(each) for each in guide.space.capacity)
    key = guide.space.key(vector)
    fastest = {task: guide.finder.fastest(task, key) for task in tasks}
    fronts = {task: guide.finder.front(task, key, 1.5 * seconds) for task, seconds in fastest.items()}
    phases = guide.relaxed.num_phases

    def steps(limit: float) -> list[float]:
        limits = np.zeros((1, 2 * phases + 2))
        limits[:, -2:] = limit, np.inf
        search = GroupColumns(guide.finder, tasks, key, fronts, {}, guide.relaxed.phase_of, limits, 20_000, np.inf)
        columns = [guide.column(tasks, vector, options) for options in search.run()]
        return sorted(sum(option.seconds for option in column.options) for column in columns)

    everything = steps(np.inf)
    assert len(everything) > 2
    assert everything[0] >= sum(fastest.values()) * (1 - 1e-12)
    middle = everything[len(everything) // 2]
    assert steps(middle) == [each for each in everything if each < middle]
    assert steps(everything[0]) == []


def test_layers_of_the_fastest_training_are_hardly_improved_by_moving_them_one_by_one(guide: ExactProblem) -> None:
    trainer = [task.name for task in guide.job.workflow.tasks].index("actor_train")
    vector = tuple(int(each) for each in guide.space.capacity)
    mixed = 0
    for option in sorted(declared_options(guide, trainer, vector), key=lambda each: each.seconds)[:40]:
        nodes, layers = zip(*option.stages()[0], strict=True)
        if len({int(guide.tables.node_type[node]) for node in nodes}) == 1 or len(option.stages()) > 1:
            continue

        def seconds(split: tuple[int, ...], option: Option = option, nodes: tuple[int, ...] = nodes) -> float:
            degree = option.degree
            return replica_seconds(
                guide.kernel_tables, trainer, TENSOR_DEGREES.index(degree), degree,
                MICRO_BATCHES.index(option.micro_batch), option.micro_batch, option.recompute, nodes, split,
                option.shares()[0],
            )  # fmt: skip

        mixed += 1
        best = seconds(fastest_layers(layers, seconds))
        assert best >= seconds(layers) * (1 - 0.06)
    assert mixed
