"""Fitting of phase calibrations: exact where the data decide, sensible where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from hetrl_profiler.calibration import fit_coefficients

BARE = np.array([1.0, 0.0, 0.0])


def columns(num_rows: int = 12) -> np.ndarray:
    draw = np.random.default_rng(0)
    return np.stack(
        [draw.uniform(0.01, 1.0, num_rows), draw.integers(1, 60, num_rows), draw.integers(8, 900, num_rows)], 1
    )


def test_coefficients_behind_exact_data_are_found() -> None:
    truth = np.array([2.5, 0.004, 0.0003])
    table = columns()
    fitted = fit_coefficients(table, table @ truth, np.ones(len(table)), BARE)
    assert table @ fitted == pytest.approx(table @ truth, rel=0.02)
    assert fitted == pytest.approx(truth, rel=0.1)


def test_one_slow_row_in_twelve_moves_little() -> None:
    truth = np.array([2.5, 0.004, 0.0])
    table = columns()
    seconds = table @ truth
    seconds[3] *= 10.0
    fitted = fit_coefficients(table, seconds, np.ones(len(table)), BARE)
    others = np.arange(len(table)) != 3
    assert np.median(np.abs(table[others] @ fitted / (table[others] @ truth) - 1.0)) < 0.05


def test_a_single_shape_scales_what_was_known() -> None:
    """30 % slower than known, one shape only: every coefficient grows by 30 %."""
    prior = np.array([2.0, 0.003, 0.0001])
    table = np.tile([0.1, 32.0, 1000.0], (5, 1))
    fitted = fit_coefficients(table, 1.3 * table @ prior, np.ones(5), prior)
    assert fitted == pytest.approx(1.3 * prior)


def test_a_single_shape_without_knowledge_scales_the_composed_time() -> None:
    fitted = fit_coefficients(np.array([[0.1, 32.0, 1000.0]]), np.array([0.15]), np.ones(1), BARE)
    assert fitted == pytest.approx([1.5, 0.0, 0.0])


def test_a_single_shape_far_off_goes_to_iterations() -> None:
    """40 times the composed time: the scale stays at 2, and 0.1 s x 38 / 32 iterations is fixed cost."""
    fitted = fit_coefficients(np.array([[0.1, 32.0, 1000.0]]), np.array([4.0]), np.ones(1), BARE)
    assert fitted == pytest.approx([2.0, 0.1 * 38 / 32, 0.0])


def test_nothing_composed_goes_to_iterations() -> None:
    """A weight update of unknown links: the composed time is 0, so the iteration takes it all."""
    fitted = fit_coefficients(np.array([[0.0, 1.0, 0.0]] * 3), np.array([0.04, 0.05, 0.06]), np.ones(3), BARE)
    assert fitted[1] == pytest.approx(0.05, rel=0.05)
    assert fitted[[0, 2]] == pytest.approx([1.0, 0.0])


def test_without_rows_nothing_changes() -> None:
    assert fit_coefficients(np.zeros((0, 3)).reshape(0, 3), np.zeros(0), np.zeros(0), BARE) is BARE


def test_heavier_rows_decide() -> None:
    """Two groups of equal shapes that disagree: the fit goes with the weight."""
    table = np.tile([0.1, 0.0, 0.0], (6, 1))
    seconds = np.array([0.1, 0.1, 0.1, 0.3, 0.3, 0.3])
    fitted = fit_coefficients(table, seconds, np.array([1e-3] * 3 + [1.0] * 3), BARE)
    assert fitted[0] == pytest.approx(3.0, rel=0.02)


def test_work_never_stops_to_count() -> None:
    """Iterations explain everything, but the composed time keeps a tenth of what it was known to be."""
    prior = np.array([2.0, 1e-3, 0.0])
    table = np.array([[0.01, 10.0, 0.0], [0.1, 11.0, 0.0], [0.2, 9.0, 0.0], [0.05, 60.0, 0.0], [0.3, 5.0, 0.0]])
    seconds = 0.5 * table[:, 1]
    fitted = fit_coefficients(table, seconds, np.ones(5), prior)
    assert fitted[0] >= 0.0999 * prior[0] * np.median(seconds / (table @ prior))
    assert table @ fitted == pytest.approx(seconds, rel=0.6)


def test_what_changes_with_time_is_not_taken_for_shape() -> None:
    """Responses grow by 3 % in a run while other programs end: the sum becomes shorter, not its make-up."""
    prior = np.array([2.0, 0.01, 0.0])
    growth = np.linspace(0.0, 0.03, 80)
    table = np.stack([0.1 * (1 + growth), np.full(80, 16.0), np.full(80, 128.0)], 1)
    seconds = np.linspace(0.6, 0.4, 80)
    fitted = fit_coefficients(table, seconds, np.ones(80), prior)
    assert table[40] @ fitted == pytest.approx(0.5, rel=0.05)
    assert fitted[1] / fitted[0] == pytest.approx(prior[1] / prior[0], rel=0.05)
