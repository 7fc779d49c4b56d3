"""Operator models: rooflines by hand, what is refused, provenance, and the shipped models against physics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetrl.cost.chips import chip_of
from hetrl.cost.fitted import Forest, Intervals, KernelCorrection, Roofline, kernel
from hetrl.cost.model_files import read_library, write_library
from hetrl.cost.operators import UNFITTED, OperatorLibrary, OperatorModel, coordinates
from hetrl.cost.work import TERMS, Chip, work_of
from hetrl.errors import SpecError
from hetrl.spec.device_names import find_device
from tests.helpers.jobs import two_nodes

CHIP = Chip(flops_per_second=100e12, memory_bytes_per_second=1e12, num_multiprocessors=100, l2_bytes=1e6)


def stump(left: float, right: float) -> Forest:
    """One tree that asks whether feature 0 is at most 0.5."""
    return Forest(
        baseline=0.25,
        depth=1,
        roots=np.array([0], dtype=np.int32),
        feature=np.array([0, 0, 0], dtype=np.uint8),
        threshold=np.array([0.5, 0.0, 0.0], dtype=np.float32),
        left=np.array([1, 1, 2], dtype=np.int32),
        right=np.array([2, 1, 2], dtype=np.int32),
        value=np.array([9.0, left, right], dtype=np.float32),
    )


def model(**changes: object) -> OperatorModel:
    values: dict[str, object] = {
        "device": "X",
        "operator": "gemm",
        "dtype": "bf16",
        "chip": CHIP,
        "rooflines": {"vllm": Roofline(offset_seconds=1e-5, coefficients=(2.0, 1.0, 1.0), num_serial=1)},
        "intervals": Intervals(edges_seconds=(), low=(-0.1,), high=(0.2,), extrapolated=(-1.0, 1.0)),
        "ranges": {"m": (1, 4096), "n": (1, 4096), "k": (1, 4096), "work_bytes": (1, 1e9)},
        "provenance": "fitted",
    }
    return OperatorModel(**{**values, **changes})  # type: ignore[arg-type]


def test_gemm_work_by_hand() -> None:
    work = work_of("gemm", np.array([[2.0], [3.0], [4.0]]), 2, CHIP)
    assert work.flops.tolist() == [48.0]
    assert work.bytes.tolist() == [2 * (8 + 12 + 6)]
    assert work.terms[2].tolist() == [0.0]
    narrow = work_of("gemm", np.array([[2.0], [3.0], [4.0]]), 1, CHIP)
    assert narrow.bytes.tolist() == [8 + 12 + 2 * 6]
    assert narrow.terms[2].tolist() == [(2 + 1) * 2 * 4 / CHIP.memory_bytes_per_second]


def test_decode_reads_the_cache_once() -> None:
    work = work_of("attention_decode", np.array([[8.0], [32.0], [4.0], [128.0], [1000.0]]), 2, CHIP)
    cache = 2 * 8 * 4 * 128 * 2 * 1000
    assert work.bytes.tolist() == [cache + 2 * 8 * 128 * 2 * 32]
    assert work.flops.tolist() == [4.0 * 8 * 32 * 1000 * 128]


def test_roofline_by_hand() -> None:
    roofline = Roofline(offset_seconds=1e-5, coefficients=(2.0, 1.0))
    assert roofline.seconds(np.array([[1e-3], [0.0]]))[0] == pytest.approx(1e-5 + 2e-3, rel=1e-12)
    both = roofline.seconds(np.array([[0.5e-3], [1e-3]]))[0]
    assert both == pytest.approx(1e-5 + 1e-3 * 2**0.25, rel=1e-12)


def test_a_roofline_of_power_one_adds_its_terms_up() -> None:
    roofline = Roofline(offset_seconds=1e-5, coefficients=(2.0, 1.0), power=1.0)
    assert roofline.seconds(np.array([[0.5e-3], [3e-3]]))[0] == pytest.approx(1e-5 + 1e-3 + 3e-3, rel=1e-12)


def test_serial_terms_overlap_with_nothing() -> None:
    roofline = Roofline(offset_seconds=1e-5, coefficients=(2.0, 1.0, 3.0), num_serial=1)
    terms = np.array([[1e-3], [0.0], [1e-4]])
    assert roofline.seconds(terms)[0] == pytest.approx(1e-5 + 2e-3 + 3e-4, rel=1e-12)


def test_prefill_terms_by_hand() -> None:
    """8 heads share 2 key-value heads: 4 x 100 query rows fill 4 blocks of 128 rows, 5 sequences 40 blocks."""
    work = work_of("attention_prefill", np.array([[5.0], [8.0], [2.0], [64.0], [100.0]]), 2, CHIP)
    terms = dict(zip(TERMS["attention_prefill"], work.terms[:, 0], strict=True))
    rounds = np.ceil(40 / CHIP.num_multiprocessors)
    assert terms["blocks"] == pytest.approx(1e-6 * rounds)
    per_block = 4 * 128 * (50 + 64) * 64 / (CHIP.flops_per_second / CHIP.num_multiprocessors)
    assert terms["waves"] == pytest.approx(rounds * per_block)
    assert terms["cache"] == pytest.approx(2 * 2 * 5 * 2 * 100 * 64 / CHIP.memory_bytes_per_second)
    assert terms["walk"] == pytest.approx(100e-9)


def test_a_single_core_computes_no_padding_of_prefill() -> None:
    dims = np.array([[5.0], [8.0], [2.0], [64.0], [100.0]])
    assert work_of("attention_prefill", dims, 4, CHIP).flops.tolist() == [2.0 * 5 * 8 * 128 * 192 * 64]
    core = replace(CHIP, num_multiprocessors=1)
    assert work_of("attention_prefill", dims, 4, core).flops.tolist() == [2.0 * 5 * 8 * 100 * 101 * 64]


@pytest.mark.parametrize(("share", "expected"), [(0.1, 0.0), (1.0, 0.5), (10.0, 1.0)])
def test_what_outgrows_the_cache_spills(share: float, expected: float) -> None:
    dims = np.array([[5.0], [8.0], [2.0], [64.0], [100.0]])
    num_bytes = work_of("attention_prefill", dims, 2, CHIP).bytes[0]
    chip = replace(CHIP, l2_bytes=num_bytes / share)
    terms = dict(zip(TERMS["attention_prefill"], work_of("attention_prefill", dims, 2, chip).terms[:, 0], strict=True))
    assert terms["spill"] / terms["memory"] == pytest.approx(expected, abs=1e-5)


def test_coordinates_of_a_correction_by_hand() -> None:
    work = work_of("gemm", np.array([[8.0], [16.0], [32.0]]), 2, CHIP)
    at = coordinates(work, np.array([2.0**-10]), np.array([1.0]))[0]
    assert at[:5].tolist() == [3.0, 4.0, 5.0, 1.0, -10.0]
    compute, memory, _ = work.terms[:, 0]
    assert at[5] == pytest.approx(max(np.log2(compute / memory), -4.0))


def test_forest_walks_by_hand() -> None:
    assert stump(1.0, 2.0).predict(np.array([[0.5], [0.6]])).tolist() == [1.25, 2.25]


def test_forest_survives_storage_and_refuses_damage() -> None:
    arrays = stump(1.0, 2.0).to_arrays()
    samples = np.array([[0.0], [1.0]])
    assert Forest.from_arrays(arrays).predict(samples).tolist() == [1.25, 2.25]
    with pytest.raises(ValueError, match="outside"):
        Forest.from_arrays({**arrays, "forest_left": np.array([7, 0, 0], dtype=np.uint16)})
    with pytest.raises(ValueError, match="length"):
        Forest.from_arrays({**arrays, "forest_value": np.zeros(2, dtype=np.float32)})


def test_kernel_correction_interpolates_its_points() -> None:
    points, targets = np.array([[0.0], [1.0], [3.0]]), np.array([0.1, -0.2, 0.3])
    weights = np.linalg.solve(kernel(points, points, 0.0), targets)
    fitted = KernelCorrection(points=points, weights=weights, center=np.zeros(1), scale=np.ones(1), linear=0.0)
    assert fitted.predict(points) == pytest.approx(targets, abs=1e-9)
    assert fitted.predict(np.array([[99.0]])) == pytest.approx(targets[2:], abs=1e-9), "constant beyond the data"


def test_prediction_by_hand() -> None:
    prediction = model().predict(m=1000, n=1000, k=1000)
    terms = np.array([2e9 / 100e12 * 2, 6e6 / 1e12])
    expected = 1e-5 + (terms**4).sum() ** 0.25
    assert prediction.seconds[0] == pytest.approx(expected, rel=1e-12)
    assert prediction.p10_seconds[0] == pytest.approx(expected * np.exp(-0.1))
    assert prediction.p90_seconds[0] == pytest.approx(expected * np.exp(0.2))
    assert not prediction.extrapolated[0]


def test_outside_the_measured_range_is_said_and_wider() -> None:
    prediction = model().predict(m=[100, 8192], n=100, k=100)
    assert prediction.extrapolated.tolist() == [False, True]
    assert prediction.p90_seconds[1] / prediction.seconds[1] == pytest.approx(np.e)


def test_engines_have_their_own_roofline_and_unknown_ones_take_the_first() -> None:
    slow = Roofline(offset_seconds=1.0, coefficients=(2.0, 1.0, 1.0))
    fast = Roofline(offset_seconds=1e-5, coefficients=(2.0, 1.0, 1.0))
    both = model(rooflines={"sglang": fast, "torch": slow})
    shape = {"m": 8, "n": 8, "k": 8}
    assert both.predict(engine="torch", **shape).seconds[0] > 1
    assert both.predict(engine="vllm", **shape).seconds[0] == both.predict(**shape).seconds[0] < 1e-3
    mixed = both.predict(engine=["torch", "sglang"], m=[8, 8], n=8, k=8).seconds
    assert mixed[0] > 1 > mixed[1]


def test_cold_caches_are_never_faster_than_memory() -> None:
    warm = model(rooflines={"vllm": Roofline(offset_seconds=1e-9, coefficients=(1e-6, 0.1, 1.0))})
    shape = {"m": 16, "n": 4096, "k": 4096}
    least = work_of("gemm", np.array([[16.0], [4096.0], [4096.0]]), 2, CHIP).bytes[0] / 1e12
    assert warm.predict(**shape).seconds[0] < least
    assert warm.predict(cold_caches=True, **shape).seconds[0] == least


@pytest.mark.parametrize(
    "dims",
    [{"m": 1, "n": 1}, {"m": 1, "n": 1, "k": 1, "z": 1}, {"m": 0, "n": 1, "k": 1}, {"m": 1, "n": np.nan, "k": 1}],
)
def test_bad_shapes_are_refused(dims: dict[str, float]) -> None:
    with pytest.raises(SpecError):
        model().predict(**dims)


def test_a_file_keeps_models_exactly(tmp_path: Path) -> None:
    path = tmp_path / "models.zip"
    original = model(forest=stump(0.5, -0.5))
    OperatorLibrary([original]).save(path)
    again = OperatorLibrary.load(path).fitted("X", "gemm", "bf16")
    assert again is not None
    shape = {"m": [1, 64, 4096], "n": 512, "k": 2048}
    assert again.predict(**shape).seconds.tolist() == original.predict(**shape).seconds.tolist()
    first = path.read_bytes()
    OperatorLibrary([original]).save(path)
    assert path.read_bytes() == first, "equal models give equal files"


def test_damaged_files_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "models.zip"
    for content in (b"", b"not a zip"):
        path.write_bytes(content)
        with pytest.raises(SpecError, match="cannot be read"):
            read_library(path)
    write_library(path, [model(forest=stump(0.5, -0.5))])
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(SpecError, match="cannot be read"):
        read_library(path)


def test_unmeasured_devices_are_datasheet_and_scale_with_their_figures() -> None:
    library = OperatorLibrary.builtin()
    slow, fast = (library.for_device(find_device(name)[0], "gemm", "bf16") for name in ("H20", "GB200"))
    assert slow.provenance == fast.provenance == "datasheet"
    shape = {"m": 8192, "n": 8192, "k": 8192}
    assert slow.predict(**shape).seconds[0] / fast.predict(**shape).seconds[0] == pytest.approx(2500 / 148, rel=0.25)
    assert not slow.predict(**shape).seconds[0] < 2 * 8192**3 / 148e12
    assert slow.predict(**shape).extrapolated.all()


def test_without_any_fit_the_roofline_stands_on_the_datasheet() -> None:
    device = find_device("A100-80GB")[0]
    fitted = OperatorLibrary().for_device(device, "memory", "bf16")
    assert fitted.provenance == "datasheet"
    roofline = UNFITTED["memory"].rooflines["vllm"]
    expected = roofline.offset_seconds + roofline.coefficients[0] * 1e9 / device.memory_bytes_per_second
    assert fitted.predict(bytes=1e9).seconds[0] == pytest.approx(expected)


def test_a_dtype_the_device_lacks_is_refused() -> None:
    with pytest.raises(SpecError, match="fp8"):
        OperatorLibrary.builtin().get("A100-80GB", "gemm", "fp8")


@pytest.mark.parametrize("device", ["A100-80GB", "H100", "H200", "L40S", "B200"])
def test_shipped_models_obey_physics(device: str) -> None:
    library = OperatorLibrary.builtin()
    chip = chip_of(find_device(device)[0], "bf16")
    gemm = library.get(device, "gemm", "bf16")
    assert gemm.provenance == "fitted"
    seconds = gemm.predict(m=[2048, 4096, 8192, 16384], n=8192, k=8192).seconds
    peak = 2.0 * np.array([2048, 4096, 8192, 16384]) * 8192 * 8192 / chip.flops_per_second
    assert (seconds > peak).all(), "not faster than the peak"
    assert (seconds < 4 * peak).all()
    assert (np.diff(seconds) > 0).all()
    decode = library.get(device, "attention_decode", "bf16")
    long = decode.predict(batch=64, heads=32, kv_heads=8, head_dim=128, kv_len=[1024, 4096, 16384]).seconds
    least = 64 * 8 * 128 * 4.0 * np.array([1024, 4096, 16384]) / chip.memory_bytes_per_second
    assert (long[1:] > least[1:]).all()
    assert (long < 6 * least + 1e-4).all()


def test_a40_has_linear_layers_only() -> None:
    library = OperatorLibrary.builtin()
    assert library.get("A40", "gemm", "bf16").provenance == "fitted"
    assert library.get("A40", "attention_prefill", "bf16").provenance == "datasheet"


def test_a_digest_follows_the_content_and_not_the_file(tmp_path: Path) -> None:
    shipped = OperatorLibrary.builtin()
    key = ("H100", "gemm", "bf16")
    read = shipped.get(*key)
    assert OperatorLibrary([read]).digest() == OperatorLibrary([replace(read)]).digest()
    write_library(tmp_path / "a.zip", [read])
    assert read_library(tmp_path / "a.zip").digest() == OperatorLibrary([read]).digest()
    faster = replace(read, chip=replace(read.chip, flops_per_second=read.chip.flops_per_second * 1.01))
    write_library(tmp_path / "b.zip", [faster])
    assert read_library(tmp_path / "b.zip").digest() != OperatorLibrary([read]).digest()
    assert shipped.merged(OperatorLibrary([faster])).digest() != shipped.digest()


def test_a_saved_library_holds_what_was_added_to_the_shipped_models(tmp_path: Path) -> None:
    path = tmp_path / "models.zip"
    own = model(device="H100", rooflines={"vllm": Roofline(offset_seconds=7.0, coefficients=(1.0, 1.0, 1.0))})
    merged = OperatorLibrary.builtin().merged(OperatorLibrary([own]))
    assert merged.get("H100", "gemm", "bf16").predict(m=8, n=8, k=8).seconds[0] > 7, "replaces the shipped one"
    merged.save(path)
    assert read_library(path).keys() == (("H100", "gemm", "bf16"),)
    again = OperatorLibrary.load(path)
    assert again.get("H100", "gemm", "bf16").predict(m=8, n=8, k=8).seconds[0] > 7
    assert again.get("H200", "gemm", "bf16").provenance == "fitted"


def test_devices_of_one_name_in_different_jobs_are_different_devices() -> None:
    """One process may plan several jobs, each with device types of its own."""
    library = OperatorLibrary.builtin()
    seconds = []
    for peak in (50, 400):
        figures = {"flops": {"bf16": f"{peak}TFLOPS"}, "memory": "40GB", "memory_bandwidth": "1TB/s"}
        node = {"id": "n", "gpus": 2, "type": "npu", "interconnect": "50GB/s", "host_ram": "64GiB", "cpu_cores": 8}
        job = two_nodes({"device_types": {"npu": figures}, "cluster_topology.nodes": [node]})
        kind = job.topology.device_types[0]
        seconds.append(library.for_device(kind, "gemm", "bf16").predict(m=8192, n=8192, k=8192).seconds[0])
    assert seconds[0] > 4 * seconds[1]
