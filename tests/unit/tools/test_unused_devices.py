"""Devices that no task uses are named by every command that describes a plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hetrl.tools.main import main

JOB = """
workflow: {algorithm: GRPO, actor_model: Qwen2.5-0.5B, reference_model: Qwen2.5-0.5B}
cluster_topology:
  nodes: [{id: a, gpus: 2, type: L4}, {id: old, gpus: 4, type: V100-SXM2-16GB}, {id: b, gpus: 1, type: L4}]
optimizer: {budget: 60}
precision: {dtype: DTYPE}
"""


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_used_and_unused_devices_are_the_fleet(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "plan.json"
    job.write_text(JOB.replace("DTYPE", dtype))
    assert main(["plan", "--config", str(job), "--out", str(out), "--quiet"]) == 0
    planned = capsys.readouterr().out
    tasks = json.loads(out.read_text())["tasks"]
    stages = [stage for task in tasks for replica in task["replicas"] for stage in replica["stages"]]
    used = {device for stage in stages for device in stage["devices"]}
    said = [planned]
    for words in (["estimate", str(out)], ["explain", str(out), "--quick"]):
        assert main(words) == 0
        said.append(capsys.readouterr().out)
    for text in said:
        counts = [line for line in text.splitlines() if line.startswith("unused devices: ")]
        assert sum(map(int, re.findall(r"(\d+) x ", "".join(counts)))) == 7 - len(used)
    if dtype == "bf16":  # which V100 does not have
        assert all("4 x V100-SXM2-16GB of old" in text for text in said)
