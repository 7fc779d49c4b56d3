"""The hybrid search against enumeration: every grouping and every assignment of small random fleets."""

from __future__ import annotations

from benchmarks.search import brute_force_study


def test_small_fleets_are_solved_as_well_as_by_enumeration() -> None:
    study = brute_force_study(30)
    assert study["equal"] == study["instances"] == 30, study
