"""Link curves and what is derived from them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hetrl.cost.links import (
    DATASHEET_EFFICIENCY,
    DATASHEET_OFFSET_SECONDS,
    DERIVED_SPREAD,
    NETWORK_SPREAD,
    LinkCurve,
    LinkModel,
    host_of,
    wire_factor,
)
from hetrl.cost.model_files import BUILTIN, read_links
from hetrl.errors import SpecError


def curve(op: str = "all_reduce", world_size: int = 8, per_byte: float = 1e-9, **changes: object) -> LinkCurve:
    values: dict[str, object] = {
        "link": "l",
        "implementation": "nccl",
        "op": op,
        "world_size": world_size,
        "num_nodes": 1,
        "gpu": "g",
        "offset_seconds": 1e-5,
        "seconds_per_sqrt_byte": 0.0,
        "seconds_per_byte": per_byte,
        "knots_log_bytes": (np.log(1e3), np.log(1e8)),
        "knots_residual": (0.0, 0.0),
        "knots_low": (-0.1, -0.2),
        "knots_high": (0.1, 0.4),
        "beyond": (-0.3, 0.5),
        "source": "",
    }
    return LinkCurve(**{**values, **changes})  # type: ignore[arg-type]


def test_a_curve_is_its_three_terms_times_its_residual() -> None:
    bent = curve(seconds_per_sqrt_byte=1e-7, knots_residual=(0.0, np.log(2.0)))
    assert bent.seconds(np.array([1e8]))[0] == pytest.approx(2 * (1e-5 + 1e-3 + 0.1))
    assert bent.seconds(np.array([1e9]))[0] == pytest.approx(2 * (1e-5 + 1e-7 * 1e9**0.5 + 1.0)), "the last one stays"
    assert bent.outside(np.array([1e2, 1e5, 1e9])).tolist() == [True, False, True]


def test_wire_bytes_as_in_nccl_tests() -> None:
    assert wire_factor("all_reduce", 8) == 1.75
    assert wire_factor("all_gather", 4) == 0.75
    assert wire_factor("send", 2) == 1.0


def test_a_measured_configuration_is_its_curve() -> None:
    prediction = LinkModel([curve(), curve(world_size=4, per_byte=5e-10)]).collective_seconds("all_reduce", 1e6, 4)
    assert prediction.seconds[0] == pytest.approx(1e-5 + 5e-4)
    assert prediction.provenance == "fitted"
    assert not prediction.extrapolated[0]


def test_a_world_size_between_two_measured_ones_lies_between_them() -> None:
    model = LinkModel([curve(world_size=2), curve(world_size=8)])
    between = model.collective_seconds("all_reduce", 1e6, 4)
    wire = 1e6 * 1.5
    assert between.seconds[0] == pytest.approx(
        np.sqrt((1e-5 + 1e-9 * wire / 1.0) * (1e-5 + 1e-9 * wire / 1.75)), rel=1e-9
    ), "halfway between 2 and 8 in log2, at equal wire bytes"
    assert between.extrapolated.all()


def test_beyond_measured_world_sizes_a_related_operation_gives_the_trend() -> None:
    gathers = [curve("all_gather", 2, per_byte=1e-9), curve("all_gather", 8, per_byte=6e-9)]
    flat = LinkModel([curve("all_reduce", 2)]).collective_seconds("all_reduce", 1e8, 8).seconds[0]
    steep = LinkModel([curve("all_reduce", 2), *gathers]).collective_seconds("all_reduce", 1e8, 8).seconds[0]
    assert steep == pytest.approx(flat * (6e-9 / wire_factor("all_gather", 8)) / (1e-9 / 0.5), rel=1e-2)


def test_a_link_without_measurements_is_datasheet() -> None:
    prediction = LinkModel(latency_seconds=2e-6, bytes_per_second=1e11).collective_seconds("all_gather", 4e8, 4)
    expected = DATASHEET_OFFSET_SECONDS + 3 * 2e-6 + 0.75 * 4e8 / (DATASHEET_EFFICIENCY * 1e11)
    assert prediction.seconds[0] == pytest.approx(expected)
    assert prediction.provenance == "datasheet"


def test_intervals_follow_the_size_and_widen_beyond_it() -> None:
    sizes = np.exp([np.log(1e3), np.log(1e8) - 0.5 * np.log(1e5), np.log(1e9)])
    prediction = LinkModel([curve()]).collective_seconds("all_reduce", sizes, 8)
    assert np.log(prediction.p10_seconds / prediction.seconds) == pytest.approx([-0.1, -0.15, -0.3])
    assert np.log(prediction.p90_seconds / prediction.seconds) == pytest.approx([0.1, 0.25, 0.5])


def test_a_derived_curve_is_as_uncertain_as_the_others_when_left_out() -> None:
    def width(*curves: LinkCurve) -> float:
        prediction = LinkModel(curves).collective_seconds("broadcast", 1e7, 8)
        return float(np.log(prediction.p90_seconds / prediction.p10_seconds)[0])

    wire = {op: 1e-9 * wire_factor(op, 8) for op in ("all_reduce", "all_gather", "reduce_scatter")}
    alike = [curve(op, per_byte=per_byte) for op, per_byte in wire.items()]
    assert width(*alike) == pytest.approx(0.0, abs=1e-9), "equal on the wire"
    assert width(*alike[:2], curve("reduce_scatter", per_byte=4 * wire["reduce_scatter"])) > 1.0
    assert width(*alike[:2]) == pytest.approx(2 * DERIVED_SPREAD), "two curves tell too little"


def test_a_network_without_measurements_is_hardly_faster_than_its_card_but_maybe_much_slower() -> None:
    link = LinkModel(latency_seconds=2e-6, bytes_per_second=25e9)
    prediction = link.collective_seconds("all_reduce", 1e8, 16, num_nodes=2)
    assert np.log(prediction.p10_seconds / prediction.seconds)[0] == pytest.approx(NETWORK_SPREAD[0])
    assert np.log(prediction.p90_seconds / prediction.seconds)[0] == pytest.approx(NETWORK_SPREAD[1])


def test_curves_survive_storage_and_refuse_damage() -> None:
    entry = json.loads(json.dumps(curve().to_json()))
    assert LinkCurve.from_json(entry) == curve()
    with pytest.raises(ValueError, match="as many"):
        LinkCurve.from_json({**entry, "knots_low": [0.0]})


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(SpecError, match="latency"):
        LinkModel()
    with pytest.raises(SpecError, match="unknown collective"):
        LinkModel([curve()]).collective_seconds("all_redcue", 1e6, 8)
    with pytest.raises(SpecError, match="2 ranks"):
        LinkModel([curve()]).collective_seconds("all_reduce", 1e6, 1)


def test_hosts() -> None:
    assert host_of("nvlink4_dgx_intra_8pn") == "nvlink4_dgx_intra"
    assert host_of("nvlink4_sxm_intra") == "nvlink4_sxm_intra"


def test_shipped_curves_respect_the_links() -> None:
    """Large all-reduces stay below the datasheet's bandwidth; more bytes never take less than half the time."""
    curves = [each for each in read_links(BUILTIN) if each.link == "nvlink4_sxm_intra" and each.gpu == "h100_sxm"]
    assert len(curves) >= 10
    assert {each.implementation for each in curves} == {"nccl-tests", "vLLM_custom_eager", "vLLM_custom_graph"}
    seconds = (
        LinkModel(curves).collective_seconds("all_reduce", [1e6, 1e7, 1e8], 8, implementation="nccl-tests").seconds
    )
    assert seconds[2] > 1.75 * 1e8 / 450e9
    assert seconds[2] < 1.75 * 1e8 / 100e9
    assert (np.diff(seconds) > 0).all()
