"""Depth-first search over one partition's columns: relaxed bounds first, exact costs of what they leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hetrl.search.exact.placing import Placed, on_best_links, place
from hetrl.search.exact.problem import Column, ExactProblem
from hetrl.search.exact.relaxation import Prices, lagrangian_bound
from hetrl.search.exact.survivors import LATER_ROUNDS, SAFETY

Floats = NDArray[np.float64]
FILTER_ROUNDS = 4


class Incumbent:
    """The best combination so far, and every combination that had to be evaluated.

    Parameters
    ----------
    objective
        What a plan must beat.
    """

    def __init__(self, problem: ExactProblem, objective: float) -> None:
        self.problem = problem
        self.objective = objective
        self.placed: Placed | None = None
        self.evaluated: dict[frozenset[int], tuple[tuple[Column, ...], float, float]] = {}
        self.num_evaluated = 0

    def offer(self, columns: Sequence[Column], relaxed: float) -> None:
        """Evaluate a combination, once."""
        key = frozenset(id(column) for column in columns)
        if key in self.evaluated:
            return
        if self.problem.space.best_links:
            placed = on_best_links(self.problem, columns, relaxed)
        else:
            placed = place(self.problem, columns)
        self.num_evaluated += 1
        self.evaluated[key] = (tuple(columns), relaxed, placed.objective)
        if not placed.objective < math.inf:
            return  # every group fits on its own, but not all of them together
        if placed.objective < self.objective or (self.placed is None and placed.objective <= self.objective):
            self.objective = placed.objective
            self.placed = placed


class ColumnSearch:
    """One partition's columns.

    Parameters
    ----------
    groups
        Columns per group.
    tolerance
        ``1 + gap`` that is asked for.
    """

    def __init__(
        self,
        problem: ExactProblem,
        groups: list[list[Column]],
        prices: Prices,
        incumbent: Incumbent,
        tolerance: float,
        stop: Callable[[], bool],
    ) -> None:
        self.problem = problem
        self.relaxed = problem.relaxed
        self.capacity = problem.room
        self.incumbent = incumbent
        self.tolerance = tolerance
        self.stop = stop
        self.groups = groups
        self.prices = prices
        self.bound = -np.inf
        self.num_nodes = 0
        self.stopped = False

    @property
    def limit(self) -> float:
        """Bounds from here on cannot win."""
        return self.incumbent.objective / self.tolerance / self.problem.least_price * (1 - SAFETY)

    def filter(self) -> bool:
        """Drop columns whose priced cost cannot win; False if a group has none left."""
        for _ in range(FILTER_ROUNDS):
            if not all(self.groups):
                self.bound = np.inf
                return False
            self.rows = [np.stack([column.rows for column in group]) for group in self.groups]
            self.vectors = [
                self.problem.held(np.array([column.vector for column in group], dtype=np.float64))
                for group in self.groups
            ]
            self.bound, self.prices, self.values = lagrangian_bound(
                self.relaxed, self.rows, self.vectors, self.capacity, self.limit, self.prices, 2 * LATER_ROUNDS
            )
            if self.bound >= self.limit:
                return False
            keep = [each - each.min() + self.bound < self.limit for each in self.values]
            left = sum(int(each.sum()) for each in keep)
            before = sum(len(each) for each in self.groups)
            self.groups = [
                [column for column, mine in zip(group, each, strict=True) if mine]
                for group, each in zip(self.groups, keep, strict=True)
            ]
            if left == before:
                break
            if left > 0.9 * before:
                self.rows = [each[mine] for each, mine in zip(self.rows, keep, strict=True)]
                self.vectors = [each[mine] for each, mine in zip(self.vectors, keep, strict=True)]
                self.values = [each[mine] for each, mine in zip(self.values, keep, strict=True)]
                break
        return all(len(group) > 0 for group in self.groups)

    def run(self) -> None:
        """Filter, then search."""
        if not self.filter():
            return
        order = sorted(range(len(self.groups)), key=lambda g: (len(self.groups[g]), g))
        self.groups = [self.groups[g] for g in order]
        self.rows = [self.rows[g] for g in order]
        self.vectors = [self.vectors[g] for g in order]
        self.values = [self.values[g] for g in order]
        number = len(order)
        self.rest_value = [float(sum(each.min() for each in self.values[g:])) for g in range(number + 1)]
        zero = np.zeros(self.relaxed.num_tasks)
        self.rest_rows = [sum((each.min(axis=0) for each in self.rows[g:]), zero) for g in range(number + 1)]
        self.rest_devices = [
            sum((each.min(axis=0) for each in self.vectors[g:]), np.zeros(len(self.capacity)))
            for g in range(number + 1)
        ]
        self.offset = float(self.prices.devices @ self.capacity)
        self.descend(0, [], zero, self.capacity, 0.0)

    def too_dear(self, relaxed: float, room: Floats) -> bool:
        """Whether a whole combination cannot win at its own price, given what it leaves of the price band."""
        if self.problem.band is None or not self.problem.dollars:
            return False
        price = float(self.capacity[-1] - room[-1])
        return relaxed * price * (1 + SAFETY) >= self.incumbent.objective / self.tolerance

    def descend(self, depth: int, chosen: list[Column], rows: Floats, room: Floats, value: float) -> None:
        """Choose a column of the next group, those with the lowest relaxed bounds first."""
        self.num_nodes += 1
        if self.stopped or (self.num_nodes % 256 == 0 and self.stop()):
            self.stopped = True
            return
        values = value + self.values[depth] + self.rest_value[depth + 1] - self.offset
        fits = (self.vectors[depth] + self.rest_devices[depth + 1] <= room).all(axis=1)
        candidates = np.flatnonzero(fits & (values < self.limit))
        if not len(candidates):
            return
        total = rows + self.rows[depth][candidates]
        ahead = total + self.rest_rows[depth + 1]
        relaxed = np.zeros(len(candidates))
        for phase in range(self.relaxed.num_phases):
            relaxed += ahead[:, self.relaxed.phase_of == phase].max(axis=1)
        last = depth + 1 == len(self.groups)
        for i in np.argsort(relaxed, kind="stable"):
            if relaxed[i] >= self.limit:
                break
            column = self.groups[depth][candidates[i]]
            if last and self.too_dear(float(relaxed[i]), room - self.vectors[depth][candidates[i]]):
                continue
            if last:
                self.incumbent.offer([*chosen, column], float(relaxed[i]))
            else:
                self.descend(
                    depth + 1,
                    [*chosen, column],
                    total[i],
                    room - self.vectors[depth][candidates[i]],
                    value + float(self.values[depth][candidates[i]]),
                )
