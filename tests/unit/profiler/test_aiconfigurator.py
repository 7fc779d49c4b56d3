"""Tables of the package aiconfigurator-core: made-up columns in its layout, and the package itself if installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hetrl.errors import EXIT_INPUT, SpecError
from hetrl.tools import fit
from hetrl_profiler.aiconfigurator import (
    MODULE,
    Columns,
    System,
    collective_table,
    installed_version,
    operator_table,
    provenance_of,
    systems,
    tables_of,
)

FIGURES = {
    "data_dir": "data/made_up",
    "gpu": {"bfloat16_tc_flops": 100e12, "fp8_tc_flops": 200e12, "mem_bw": 1e12},
    "node": {"num_gpus_per_node": 8, "intra_node_bw": 450e9},
}
SYSTEM_TEXT = """
data_dir: data/made_up
gpu: {bfloat16_tc_flops: 100000000000000, fp8_tc_flops: 200000000000000, mem_bw: 1000000000000}
node: {num_gpus_per_node: 8, intra_node_bw: 450000000000}
"""
SYSTEM = System(name="made_up", figures=FIGURES, folder=Path("nowhere"))


def columns(**values: list[object]) -> Columns:
    return {name: np.array(each) for name, each in values.items()}


def test_gemm_rows() -> None:
    """Milliseconds become microseconds; other formats and what no chip can do are left out."""
    table = operator_table(
        "gemm",
        SYSTEM,
        columns(
            gemm_dtype=["bfloat16", "fp8", "fp8_block", "bfloat16"],
            m=[1024, 64, 64, 8192], n=[2048, 64, 64, 8192], k=[4096, 64, 64, 8192],
            latency=[0.5, 0.003, 0.003, 1e-3],
        ),
        "aic-vllm-1",
    )  # fmt: skip
    assert table.kind == "gemm"
    assert table.columns["dtype"] == ("bf16", "fp8")
    assert table.columns["m"] == ("1024", "64")
    assert [float(text) for text in table.columns["time_us"]] == [500.0, 3.0]
    assert table.engines() == ["vllm", "vllm"]


def test_attention_rows() -> None:
    rows: dict[str, list[object]] = {
        "attn_dtype": ["bfloat16"] * 5, "kv_cache_dtype": ["bfloat16", "bfloat16", "bfloat16", "fp8", "bfloat16"],
        "batch_size": [2] * 5, "num_heads": [16] * 5, "num_key_value_heads": [0, 4, 4, 4, 4], "head_dim": [64] * 5,
        "beam_width": [1] * 5, "window_size": [0, 0, 128, 0, 0], "latency": [1.0] * 5,
    }  # fmt: skip
    prefill = operator_table(
        "attention_prefill", SYSTEM, columns(**rows, isl=[256] * 5, step=[0, 0, 0, 0, 99]), "aic-sglang-1"
    )
    assert prefill.columns["kv_heads"] == ("16", "4"), (
        "0 means one per head; windows, fp8 caches, prefixes are left out"
    )
    assert prefill.columns["seq_len"] == ("256", "256")
    decode = operator_table("attention_decode", SYSTEM, columns(**rows, isl=[1] * 5, step=[511] * 5), "aic-sglang-1")
    assert decode.columns["kv_len"] == ("512", "512", "512"), "the step before, and the new token"
    assert decode.engines() == ["sglang"] * 3


def test_collective_rows() -> None:
    table = collective_table(
        SYSTEM,
        columns(
            nccl_dtype=["half", "int8", "half"], num_gpus=[8, 8, 16], message_size=[1024, 1024, 2048],
            kernel_source=["NCCL"] * 3, op_name=["all_reduce", "all_reduce", "all_gather"], latency=[0.02, 0.02, 0.04],
        ),
        "aic-nccl-2",
    )  # fmt: skip
    assert table.columns["bytes"] == ("2048", "4096"), "elements of half"
    assert table.columns["nodes"] == ("1", "2")
    assert set(table.columns["link"]) == {"nvlink4_made_up_intra"}
    assert set(table.columns["impl"]) == {"nccl-tests"}


def test_newest_table_of_the_wanted_software_in_a_folder_like_the_packages(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    (tmp_path / "made_up.yaml").write_text(SYSTEM_TEXT)
    (tmp_path / "defaults.yaml").write_text("schema_version: 1\n")
    for software, version, m in (("vllm", "0.9.2", 1), ("vllm", "0.10.0rc2", 2), ("vllm", "0.10.0", 3), ("zz", "9", 4)):
        folder = tmp_path / "data" / "made_up" / "gemm" / software / version
        folder.mkdir(parents=True)
        rows = {"gemm_dtype": ["bfloat16"], "m": [m], "n": [64], "k": [64], "latency": [0.01]}
        parquet.write_table(pyarrow.table(rows), folder / "gemm_perf.parquet")
    (system,) = systems(tmp_path)
    (table,) = tables_of(system)
    assert table.columns["m"] == ("3",)
    (other,) = tables_of(system, framework="none such")
    assert other.columns["m"] == ("3",), "whoever comes first in the alphabet"


def test_a_folder_without_systems_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no systems there"):
        systems(tmp_path)


def test_a_missing_package_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)  # what the import system takes for a package that is not there
    out = tmp_path / "models.zip"
    assert fit.main(["--aiconfigurator", "--out", str(out)]) == EXIT_INPUT
    said = capsys.readouterr().err
    assert "aiconfigurator-core is not installed" in said and "hetrl[measured]" in said
    assert not out.exists()


@pytest.mark.skipif(installed_version() is None, reason="needs the extra 'measured'")
def test_the_installed_package() -> None:
    found = {system.name: system for system in systems()}
    tables = tables_of(found["h100_sxm"], max_rows=500)
    assert {table.kind for table in tables} == {"gemm", "attention_prefill", "attention_decode", "collective"}
    for table in tables:
        assert len(table) > 0 and (table.numbers("time_us") > 0).all()
        assert (
            provenance_of(str(installed_version())).removeprefix("measured (").rstrip(")") in table.columns["source"][0]
        )
