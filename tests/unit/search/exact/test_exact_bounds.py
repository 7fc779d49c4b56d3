"""Bounds and fronts of the exact solver against everything that is declared."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.exact.problem import ExactProblem, declared_options
from hetrl.search.exact.relaxation import Relaxation, first_prices, lagrangian_bound
from hetrl.spec.presets import benchmark_instance


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
