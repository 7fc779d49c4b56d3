"""Calibrating composed times of whole steps and batches: a few non-negative coefficients per framework and GPU."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from hetrl.cost.end_to_end import TERMS, Composer
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.published import Table, read_table
from hetrl.cost.scenarios import Inexpressible, Scenario, scenario_of, seconds_measured
from hetrl.cost.work import Array
from hetrl.files import write_text_atomically

HEADER = """# Calibrations of composed times, made by `python -m hetrl_profiler.fit.end_to_end` from published results
# (sources: docs/fidelity.md). Key: kind|framework|GPU, from specific to general; values: one per term, not negative.
# The first terms scale seconds, the last ones are seconds per count."""

NUM_REWEIGHTINGS = 12
MIN_ROWS = 12
PULL = 0.3
"""How strongly a GPU's coefficients are drawn to its framework's, in units of the error of one row."""


def fit_coefficients(
    scenarios: Sequence[Scenario], terms: Sequence[Array], seconds: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Fit all levels: kind, framework, framework on a GPU (where it has `MIN_ROWS` rows)."""
    rows: dict[str, list[int]] = defaultdict(list)
    for number, scenario in enumerate(scenarios):
        for key in (scenario.kind, f"{scenario.kind}|{scenario.family}", scenario.group):
            rows[key].append(number)
    out: dict[str, tuple[float, ...]] = {}
    for key, own in sorted(rows.items(), key=lambda item: item[0].count("|")):
        if len(own) >= MIN_ROWS or "|" not in key:
            table = np.stack([terms[number] for number in own])
            parent = out.get(key.rpartition("|")[0])
            out[key] = tuple(float(each) for each in _fit(table, np.array([seconds[number] for number in own]), parent))
    return out


def _fit(table: Array, seconds: Array, parent: tuple[float, ...] | None) -> Array:
    """Least absolute relative error by reweighting, drawn towards the parent's coefficients."""
    scale = np.maximum((table / seconds[:, None]).mean(axis=0), 1e-30)
    rows, goal = table / seconds[:, None] / scale, np.ones(len(seconds))
    weight = np.ones(len(seconds))
    solution = np.zeros(table.shape[1])
    for _ in range(NUM_REWEIGHTINGS):
        left, right = rows * weight[:, None], goal * weight
        if parent is not None:
            left = np.concatenate([left, PULL * np.eye(len(scale))])
            right = np.concatenate([right, PULL * np.array(parent) * scale])
        solution = nnls(left, right)[0]
        weight = 1.0 / np.sqrt(np.maximum(np.abs(rows @ solution - 1.0), 0.02))
    return np.asarray(solution / scale)


def composed_rows(table: Table, library: OperatorLibrary) -> tuple[list[int], list[Scenario], list[Array], list[float]]:
    """Rows of an end-to-end table that can be expressed: number, scenario, terms, measured seconds.

    RL steps come last: they are made of generation and training as calibrated by all the other rows.
    """
    rows = [{name: column[number] for name, column in table.columns.items()} for number in range(len(table))]
    composer = Composer(library, {})
    numbers: list[int] = []
    scenarios: list[Scenario] = []
    terms: list[Array] = []
    seconds: list[float] = []
    for is_rl in (False, True):
        for number, row in enumerate(rows):
            if (row["category"] == "rl_step") != is_rl:
                continue
            try:
                scenario = scenario_of(row)
                terms.append(composer.terms(scenario))
            except Inexpressible:
                continue
            numbers.append(number)
            scenarios.append(scenario)
            seconds.append(seconds_measured(scenario, float(row["value"])))
        composer = Composer(library, fit_coefficients(scenarios, terms, seconds))
    return numbers, scenarios, terms, seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Write the calibrations that ship with hetrl."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    _, scenarios, terms, seconds = composed_rows(read_table(args.data / "end_to_end.csv"), OperatorLibrary.builtin())
    fitted = fit_coefficients(scenarios, terms, seconds)
    lines = [HEADER, "coefficients:"]
    for key, values in fitted.items():
        names = ", ".join(TERMS[key.partition("|")[0]])
        numbers = ", ".join(f"{value:.5g}" for value in values)
        lines.append(f'  "{key}": [{numbers}]  # {names}')
    write_text_atomically(args.out, "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
