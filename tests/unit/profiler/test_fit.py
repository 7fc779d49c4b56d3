"""Fits find a made-up truth again, and say how uncertain they are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hetrl.cost.fitted import Roofline
from hetrl.cost.links import NETWORK_SPREAD, LinkModel
from hetrl.cost.model_files import BUILTIN, read_index, read_links
from hetrl.cost.operators import TYPICAL, OperatorLibrary
from hetrl.cost.published import link_figures
from hetrl.cost.work import POWERS, Chip, work_of
from hetrl_profiler.fit.library import settings
from hetrl_profiler.fit.links import LEAST_BEYOND, UNKNOWN_SPREAD, datasheet_spread, fit_curve
from hetrl_profiler.fit.roofline import fit_roofline, joint_rooflines
from hetrl_profiler.fit.samples import Samples
from hetrl_profiler.fit.transfer import EFFECTIVE_POINTS, _shares, _weights
from hetrl_profiler.fit.trees import SERIES, boosting_of, fit_forest, shared_boosting_of, weighted_sum

CHIP = Chip(flops_per_second=100e12, memory_bytes_per_second=1e12, num_multiprocessors=100, l2_bytes=5e7)
LABELS = {"link": "l", "implementation": "i", "op": "all_reduce", "world_size": 8, "num_nodes": 1, "gpu": "g"}


def test_the_roofline_of_decode_is_found_again() -> None:
    rng = np.random.default_rng(0)
    batch, kv_heads = 2.0 ** rng.integers(0, 9, 600), 2.0 ** rng.integers(0, 4, 600)
    dims = np.stack([batch, kv_heads * 4, kv_heads, np.full(600, 128.0), 2.0 ** rng.uniform(4, 15, 600)])
    terms = work_of("attention_decode", dims, 2, CHIP).terms
    truth = Roofline(offset_seconds=8e-6, coefficients=(2.0, 1.3, 3.0, 1.0), power=POWERS["attention_decode"])
    found = fit_roofline(terms, truth.seconds(terms), "attention_decode")
    assert found.power == truth.power
    assert found.seconds(terms) == pytest.approx(truth.seconds(terms), rel=1e-2)


def test_devices_alike_have_their_roofline_in_common() -> None:
    rng = np.random.default_rng(1)
    truth = Roofline(offset_seconds=5e-6, coefficients=(1.5, 1.2, 1.0), num_serial=1)
    devices = []
    for peak in (100e12, 400e12):
        chip = replace(CHIP, flops_per_second=peak)
        dims = 2.0 ** rng.uniform(4, 13, (3, 300))
        devices.append(
            Samples(
                operator="gemm",
                dtype="bf16",
                device=f"{peak}",
                chip=chip,
                dims=dims,
                seconds=truth.seconds(work_of("gemm", dims, 2, chip).terms),
                engine=np.zeros(300, dtype=np.int64),
            )
        )
    found = joint_rooflines(devices)
    assert list(found) == ["vllm"]
    assert found["vllm"].coefficients[:2] == pytest.approx(truth.coefficients[:2], rel=1e-2)


def test_no_arithmetic_beyond_the_peak() -> None:
    terms = np.stack([np.geomspace(1e-6, 1e-1, 50), np.geomspace(1e-8, 1e-4, 50), np.zeros(50)])
    found = fit_roofline(terms, 0.5 * terms[0] + 1e-6, "gemm")
    assert found.coefficients[0] == pytest.approx(1.0, rel=1e-3)


def test_large_points_weigh_more_where_there_are_many() -> None:
    seconds = np.geomspace(1e-6, 1.0, 300)
    weights = _weights(seconds)
    assert weights.mean() == pytest.approx(1.0)
    assert (np.diff(weights) > 0).all()
    assert weights.sum() ** 2 / (weights**2).sum() >= EFFECTIVE_POINTS
    assert _weights(seconds[:EFFECTIVE_POINTS]).tolist() == [1.0] * EFFECTIVE_POINTS


def test_a_weighted_sum_of_forests_is_one_forest() -> None:
    rng = np.random.default_rng(2)
    rows = rng.uniform(size=(500, 3))
    first, second = (fit_forest(rows, rows[:, column] ** 2, SERIES) for column in (0, 1))
    joint = weighted_sum([first, second, first], np.array([0.3, 0.9, 0.0]))
    assert len(joint.roots) == len(first.roots) + len(second.roots)
    expected = 0.3 * first.predict(rows) + 0.9 * second.predict(rows)
    assert joint.predict(rows) == pytest.approx(expected, abs=1e-5)


def test_a_mixture_takes_the_residuals_that_fit() -> None:
    rng = np.random.default_rng(3)
    residuals = rng.normal(size=(60, 4)) * 0.2
    shares = _shares(residuals, 0.7 * residuals[:, 1] + 0.3 * residuals[:, 3])
    assert shares == pytest.approx([0.0, 0.7, 0.0, 0.3], abs=1e-6)


def test_an_exact_curve_is_certain_but_not_beyond_its_sizes() -> None:
    sizes = np.geomspace(1e3, 1e9, 21)
    fitted = fit_curve(sizes, 1e-5 + 1e-8 * np.sqrt(sizes) + 1e-11 * sizes, **LABELS, source="")  # type: ignore[arg-type]
    assert np.abs([fitted.knots_low, fitted.knots_high]).max() < 1e-3
    assert fitted.beyond == (-LEAST_BEYOND, LEAST_BEYOND)


def test_sizes_that_scatter_have_the_wider_interval() -> None:
    sizes = np.geomspace(1e3, 1e9, 61)
    scatter = np.where(sizes < 1e6, np.exp(np.tile([-0.3, 0.3], 31)[:61]), 1.0)
    fitted = fit_curve(sizes, (1e-5 + 1e-11 * sizes) * scatter, **LABELS, source="")  # type: ignore[arg-type]
    assert fitted.knots_high[1] - fitted.knots_low[1] > 0.4
    assert fitted.knots_high[-1] - fitted.knots_low[-1] < 0.02


def test_a_curve_of_few_sizes_is_uncertain() -> None:
    sizes = np.geomspace(1e3, 1e9, 5)
    fitted = fit_curve(sizes, 1e-5 + 1e-11 * sizes, **LABELS, source="")  # type: ignore[arg-type]
    assert fitted.beyond == (-UNKNOWN_SPREAD, UNKNOWN_SPREAD)
    assert set(fitted.knots_high) == {UNKNOWN_SPREAD}


def test_the_interval_of_an_unmeasured_network_is_that_of_published_hosts() -> None:
    between_nodes = [curve for curve in read_links(BUILTIN) if "_inter" in curve.link]
    assert datasheet_spread(between_nodes) == pytest.approx(NETWORK_SPREAD, abs=0.01)


def test_every_host_weighs_the_same_in_a_datasheet_spread() -> None:
    sizes = np.geomspace(1e6, 1e9, 12)
    latency, bandwidth = link_figures("a_inter")
    seconds = (
        LinkModel(latency_seconds=latency, bytes_per_second=bandwidth).collective_seconds("send", sizes, 2).seconds
    )
    labels = {**LABELS, "op": "send", "world_size": 2, "num_nodes": 2, "source": ""}
    slow = fit_curve(sizes, 4.0 * seconds, **(labels | {"link": "a_inter"}))  # type: ignore[arg-type]
    links = [f"b_inter_{number}pn" for number in (1, 2, 4)]
    fast = [fit_curve(sizes, seconds, **(labels | {"link": link, "gpu": "other"})) for link in links]  # type: ignore[arg-type]
    assert datasheet_spread([slow, *fast]) == pytest.approx((0.0, np.log(4)), abs=0.01)


def test_the_shipped_models_were_made_with_the_settings_of_this_code() -> None:
    """If this fails, make the file again: ``python -m hetrl_profiler.fit.library`` (docs/fidelity.md)."""
    assert read_index(BUILTIN)["facts"]["settings"] == json.loads(json.dumps(settings()))
    library = OperatorLibrary.builtin()
    for key in sorted(library.keys()):
        device, operator, _ = key
        model = library.fitted(*key)
        assert model is not None and model.forest is not None
        boosting = shared_boosting_of(operator) if device == TYPICAL else boosting_of(operator)
        assert len(model.forest.roots) == boosting.num_trees * len(boosting.losses), (device, operator)
