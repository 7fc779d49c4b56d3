"""Processes that work out bounds of tasks on vectors; they inherit the problem, and only numbers come back."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.pool import Pool

from hetrl.search.exact.problem import ExactProblem

FEWEST_VECTORS = 2_000
"""In smaller spaces processes cost more than they save."""
FEWEST_ITEMS = 32
CHUNK = 16

Item = tuple[int, int]
"""A task and the number of a vector."""

Fastest = tuple[float, float, float]

_problem: ExactProblem | None = None


class Workers:
    """Fastest options of tasks on vectors, in this process or in several; the figures do not depend on it.

    Parameters
    ----------
    threads
        Processes; None for one per core, in spaces that are large enough.
    """

    def __init__(self, problem: ExactProblem, threads: int | None) -> None:
        self.problem = problem
        few = len(problem.space.vectors) < FEWEST_VECTORS
        self.number = threads or (1 if few else os.cpu_count() or 1)
        if "fork" not in multiprocessing.get_all_start_methods():
            self.number = 1
        self.pool: Pool | None = None

    def fastest(self, items: Sequence[Item]) -> list[Fastest]:
        """Per item the seconds of the fastest option, the fastest with the trained weights, and the least sync."""
        if self.number == 1 or len(items) < FEWEST_ITEMS:
            return [_fastest(self.problem, item) for item in items]
        if self.pool is None:
            global _problem
            _problem = self.problem
            self.pool = multiprocessing.get_context("fork").Pool(self.number, _ignore_interrupts)
        return self.pool.map(_fastest_here, items, chunksize=CHUNK)

    def close(self) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.terminate()
            self.pool.join()
            self.pool = None


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the workers


def _fastest_here(item: Item) -> Fastest:
    assert _problem is not None
    return _fastest(_problem, item)


def _fastest(problem: ExactProblem, item: Item) -> Fastest:
    task, vector = item
    relaxed, finder = problem.relaxed, problem.finder
    key = problem.space.key(problem.space.vectors[vector])
    best = together = finder.fastest(task, key)
    if task in relaxed.trainers:
        together = min(best, finder.fastest_shared(task, relaxed.trainers[task], key))
    receives = any(task in targets for targets in relaxed.targets.values())
    return best, together, finder.least_sync(task, key) if receives else 0.0
