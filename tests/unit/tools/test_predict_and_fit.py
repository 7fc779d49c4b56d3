"""`hetrl predict` and `hetrl fit` on small tables in the published formats."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.published import LAYER_OPERATORS
from hetrl.errors import EXIT_INPUT, EXIT_OK
from hetrl.tools import fit, predict

SKLEARN = pytest.importorskip("sklearn")


def write(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def predicted(table: Path, *extra: str) -> list[dict[str, str]]:
    out = table.with_name(f"out_{table.name}")
    assert predict.main(["--in", str(table), "--out", str(out), *extra]) == EXIT_OK
    with out.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_operator_rows(tmp_path: Path) -> None:
    rows = predicted(
        write(
            tmp_path / "gemm.csv",
            "gpu,dtype,m,n,k,time_us,source",
            ["h100_sxm,bf16,4096,7000,9000,1,aic-vllm-0.14.0", "h20,bf16,64,4096,4096,1,x"],
        )
    )
    first, second = rows
    assert first["m"] == "4096", "the input stays"
    assert (first["provenance"], second["provenance"]) == ("fitted", "datasheet")
    peak_us = 2 * 4096 * 7000 * 9000 / 989e12 * 1e6
    assert peak_us < float(first["predicted_us"]) < 2.5 * peak_us
    assert float(first["p10_us"]) < float(first["predicted_us"]) < float(first["p90_us"])


def test_what_nobody_knows_stays_empty_and_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(
        tmp_path / "gemm.csv",
        "gpu,dtype,m,n,k",
        ["nonesuch9000,bf16,64,64,64", "a100_sxm,fp8,64,64,64", "a100_sxm,bf16,64,64,64"],
    )
    rows = predicted(table)
    assert [row["predicted_us"] == "" for row in rows] == [True, True, False]
    assert [row["provenance"] for row in rows] == [
        "none: gpu: unknown device (found: nonesuch9000)", "none: A100-80GB: does not compute in fp8", "fitted"
    ]  # fmt: skip
    said = capsys.readouterr().err
    assert "1 row without a prediction: gpu: unknown device (found: nonesuch9000)" in said
    assert "fp8" in said


def test_files_of_spreadsheets(tmp_path: Path) -> None:
    """Byte order mark, CRLF, an empty last line, spelled-out dtypes: the same figures as of a plain file."""
    plain = predicted(write(tmp_path / "a.csv", "gpu,dtype,m,n,k", ["h100_sxm,bf16,64,512,512", "l40s,fp8,9,99,999"]))
    table = tmp_path / "b.csv"
    table.write_bytes(b"\xef\xbb\xbfgpu, dtype,m,n,k\r\nh100_sxm,BFloat16,64,512,512\r\nl40s,fp8_e4m3,9,99,999\r\n\r\n")
    for one, other in zip(plain, predicted(table), strict=True):
        assert one["predicted_us"] == other["predicted_us"] != ""


def test_shapes_outside_the_measured_ones_are_called_extrapolated(tmp_path: Path) -> None:
    rows = predicted(
        write(
            tmp_path / "gemm.csv",
            "gpu,dtype,m,n,k",
            ["h100_sxm,bf16,4096,4096,4096", "h100_sxm,bf16,4096,4000000,4096", "h20,bf16,64,64,64"],
        )
    )
    assert [row["extrapolated"] for row in rows] == ["no", "yes", "yes"]


def test_attention_and_collective_rows(tmp_path: Path) -> None:
    decode = predicted(
        write(
            tmp_path / "d.csv",
            "gpu,dtype,batch,heads,kv_heads,head_dim,kv_len",
            ["h200_sxm,bf16,64,28,4,128,4096", "h200_sxm,bf16,64,28,4,128,8192"],
        )
    )
    assert float(decode[1]["predicted_us"]) > 1.5 * float(decode[0]["predicted_us"])
    links = predicted(
        write(
            tmp_path / "l.csv",
            "gpu,link,impl,op,world_size,nodes,bytes",
            [
                "h100_sxm,nvlink4_sxm_intra,nccl-tests,all_reduce,8,1,100000000",
                "h100_sxm,nvlink4_sxm_intra,nccl-tests,alltoall,2,1,100000000",
                "new,nvlink5_new_intra,nccl-tests,all_reduce,8,1,100000000",
            ],
        )
    )
    assert [row["provenance"] for row in links] == ["fitted", "fitted", "datasheet"]


def test_links_that_nobody_can_tell_and_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = predicted(
        write(
            tmp_path / "l.csv",
            "gpu,link,impl,op,world_size,nodes,bytes",
            [
                "mi300x,xgmi_intra,rccl-tests,all_reduce,8,1,1000000",
                "h100_sxm,nvlink4_sxm_intra,nccl-tests,shuffle,8,1,1000000",
                "h100_sxm,nvlink4_sxm_intra,nccl-tests,all_reduce,1,1,1000000",
                "nonesuch,nvlink4_sxm_intra,other,all_reduce,6,1,1000000",
                "h100_sxm,nvlink4_dgx_inter_8pn,torch-nccl,all_gather,16,2,1000000",
            ],
        )
    )
    assert [row["predicted_us"] == "" for row in rows] == [True, True, True, False, False]
    assert rows[0]["provenance"] == "none: link: unknown link (found: xgmi_intra)"
    assert rows[2]["provenance"].startswith("none: all_reduce: sizes must be positive")
    assert capsys.readouterr().err.count("1 row without a prediction") == 3


def test_layer_rows_have_columns_per_operator(tmp_path: Path) -> None:
    (row,) = predicted(
        write(
            tmp_path / "mlp.csv",
            "gpu,model,tp,num_tokens,n_head,n_kv_head,n_embd,n_ffn,vocab,gated",
            ["a40,m,2,1024,32,8,4096,14336,32000,1"],
        )
    )
    for name in LAYER_OPERATORS:
        assert float(row[f"{name}_predicted_us"]) > 0
        assert row[f"{name}_provenance"] == "fitted"
    up_peak_us = 2 * 1024 * 14336 * 4096 / 149.7e12 * 1e6
    assert up_peak_us < float(row["mlp_up_proj_predicted_us"]) < 4 * up_peak_us


def test_end_to_end_rows(tmp_path: Path) -> None:
    header = (
        "category,gpu,num_gpus,model,precision,framework,algo,sync_mode,train_parallel,gen_parallel,global_batch,"
        "micro_batch,seq_or_input_len,output_len,mean_seq_len,metric,value,unit,notes,source,licence,suspect"
    )
    rows = predicted(
        write(
            tmp_path / "e.csv",
            header,
            [
                "train_step,a100_sxm,8,MPT-7b,bf16,llm-foundry/Composer FSDP,pretrain,,FSDP=FULL_SHARD act_ckpt=True,,"
                "64,8,2048,,,tokens_per_s,1,tok/s,,,,",
                "generation_batch,h100_sxm,1,meta-llama/Meta-Llama-3-8B,16-bit,vLLM,,,,TP=1,32,,512,512,,batch_latency,1,s,,,,",
                "serving,h100_sxm,1,x,bf16,vLLM,,,,TP=1,32,,512,512,,ttft_mean_ms,1,ms,,,,",
            ],
        )
    )
    flops_per_token = 4 * 2 * 6.7e9
    assert 0.3 < float(rows[0]["predicted"]) * flops_per_token / (8 * 312e12) < 0.9
    least_seconds = 512 * 16.06e9 / 3350e9
    assert least_seconds < float(rows[1]["predicted"]) < 4 * least_seconds
    assert rows[2]["predicted"] == ""
    assert [row["provenance"] for row in rows] == ["composed", "composed", "none: serving, ttft_mean_ms: not composed"]


def test_an_end_to_end_row_needs_few_columns(tmp_path: Path) -> None:
    header = "category,gpu,num_gpus,model,gen_parallel,global_batch,seq_or_input_len,output_len,metric,unit"
    row = "generation_batch,h100_sxm,1,meta-llama/Meta-Llama-3-8B,TP=1,32,512,512,batch_latency,s"
    (found,) = predicted(write(tmp_path / "e.csv", header, [row]))
    assert "precision" not in found
    assert found["provenance"] != ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,dtype,m\nh100,bf16,1\n", "no known table"),
        ("gpu,dtype,m,n,k\nh100,bf16,1,1\n", "fields"),
        ("gpu,dtype,m,n,k\nh100,bf16,1,x,1\n", "positive number"),
        ("", "empty"),
    ],
)
def test_broken_tables_are_one_message(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "broken.csv"
    table.write_text(text)
    out = tmp_path / "out.csv"
    assert predict.main(["--in", str(table), "--out", str(out)]) == EXIT_INPUT
    assert message in capsys.readouterr().err
    assert not out.exists()


BAD_ROWS = ["h100_sxm,bf16,64,512,512", "h100_sxm,bf16,0,512,512", "", "h100_sxm,bf16,64,x,nan", "l40s,bf16,9,99,999"]


def test_all_bad_rows_are_listed_with_their_lines_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "gemm.csv", "gpu,dtype,m,n,k", BAD_ROWS)
    out = tmp_path / "out.csv"
    assert predict.main(["--in", str(table), "--out", str(out)]) == EXIT_INPUT
    said = capsys.readouterr().err
    assert "gemm.csv:3: m must be a positive number (found: '0')" in said
    assert "gemm.csv:5: n must be a positive number (found: 'x')" in said  # line 4 is empty
    assert not out.exists()


def test_bad_rows_can_be_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "gemm.csv", "gpu,dtype,m,n,k", BAD_ROWS)
    rows = predicted(table, "--skip-bad-rows")
    assert [row["k"] for row in rows] == ["512", "512", "nan", "999"], "the rows stay in place"
    assert [row["predicted_us"] == "" for row in rows] == [False, True, True, False]
    assert rows[1]["provenance"] == "none: m must be a positive number (found: '0')"
    assert rows[1]["extrapolated"] == ""
    assert "1 row without a prediction: n must be a positive number" in capsys.readouterr().err
    good = predicted(write(tmp_path / "good.csv", "gpu,dtype,m,n,k", [BAD_ROWS[0], BAD_ROWS[-1]]))
    assert [good[0], good[1]] == [rows[0], rows[3]]


def test_a_table_of_bad_rows_only(tmp_path: Path) -> None:
    header = "gpu,link,impl,op,world_size,nodes,bytes"
    (row,) = predicted(write(tmp_path / "l.csv", header, ["a40,pcie4_intra,x,send,2,1,-1"]), "--skip-bad-rows")
    assert row["provenance"] == "none: bytes must be a positive number (found: '-1')"


def test_many_problems_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "gemm.csv", "gpu,dtype,m,n,k", ["h100_sxm,bf16,1,1,0"] * 60)
    assert predict.main(["--in", str(table), "--out", str(tmp_path / "o.csv")]) == EXIT_INPUT
    said = capsys.readouterr().err
    assert said.count("must be a positive number") == 50
    assert "10 further rows like these" in said


def measured(seed: int, count: int, gpu: str) -> list[str]:
    """Measurements of an invented device: 60 % of 200 TFLOP/s, 80 % of 1000 GB/s, 8 us per launch."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        m, n, k = (int(2 ** rng.integers(5, 13)) for _ in range(3))
        compute, memory = 2 * m * n * k / (0.6 * 200e12), 2 * (m * k + n * k + m * n) / (0.8 * 1000e9)
        rows.append(f"{gpu},bf16,{m},{n},{k},{1e6 * (8e-6 + (compute**4 + memory**4) ** 0.25):.4f}")
    return rows


def test_predicting_with_a_cost_model_of_a_profile(tmp_path: Path) -> None:
    """Its operators lie beside it, under the name of the profiled device."""
    from dataclasses import replace

    own = OperatorLibrary.builtin().get("H100", "gemm", "bf16")
    model = CostModel(library=OperatorLibrary([replace(own, device="my-device", dtype="fp32")]))
    model.save(tmp_path / "model.json")
    table = write(tmp_path / "t.csv", "gpu,dtype,m,n,k", ["my-device,fp32,512,512,512", "l4,bf16,512,512,512"])
    rows = predicted(table, "--models", str(tmp_path / "model.json"))
    assert [row["provenance"] for row in rows] == ["fitted", "datasheet"]


def test_sixty_points_of_a_new_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    header = "gpu,dtype,m,n,k,time_us"
    write(data / "gemm.csv", header, measured(0, 60, "newchip"))
    models = tmp_path / "models.zip"
    arguments = ["--data", str(data), "--device-name", "newchip", "--out", str(models)]
    assert fit.main(arguments) == EXIT_INPUT
    assert "--tflops" in capsys.readouterr().err
    assert fit.main([*arguments, "--tflops", "200", "--memory-GBps", "1000"]) == EXIT_OK
    rows = predicted(write(tmp_path / "unseen.csv", header, measured(1, 80, "newchip")), "--models", str(models))
    errors = [abs(float(row["predicted_us"]) / float(row["time_us"]) - 1) for row in rows]
    assert np.median(errors) < 0.1
    assert {row["provenance"] for row in rows} == {"fitted"}
