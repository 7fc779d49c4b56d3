"""`hetrl profile --ray` on a real Ray of three nodes: one task per device type, two per class of link between them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hetrl.cost.model import CostModel
from hetrl.measure import load_measurements
from hetrl_profiler.model_fit import fit_profile
from tests.helpers.demo import launch_environment

pytestmark = pytest.mark.runtime

CLUSTER = """
import os, subprocess, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"gpu_type:fast": 8}})
for name in ("fast", "slow"):
    cluster.add_node(num_cpus=2, resources={f"gpu_type:{name}": 8})
command = [sys.executable, "-m", "hetrl.tools.profile", "--ray", "--quick", "--quiet", "--out", sys.argv[1]]
done = subprocess.run(command, env={**os.environ, "RAY_ADDRESS": cluster.address})
cluster.shutdown()
sys.exit(done.returncode)
"""


def test_types_and_links_of_a_cluster(tmp_path: Path) -> None:
    out, script = tmp_path / "measurements.jsonl", tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    environment = {**os.environ, **launch_environment(), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script), str(out)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = load_measurements(out)
    operators = Counter(each.device_type for each in rows if each.kind == "gemm")
    assert set(operators) == {"fast", "slow"} and len(set(operators.values())) == 1, (
        "two nodes are fast: one is measured"
    )
    links = Counter(
        (each.device_type, each.labels["peer"])
        for each in rows
        if each.labels.get("link") == "network" and each.kind == "send"
    )
    assert set(links) == {("fast", "fast"), ("fast", "slow")}, "no two nodes are slow"
    model = fit_profile(rows, CostModel.builtin())[0].model
    assert set(model.network) == {("fast", "fast"), ("fast", "slow"), ("slow", "fast")}
    for link in model.network.values():
        assert 0 <= link.latency_seconds < 1 and 1e6 < link.bytes_per_second < 1e12
    assert not model.links, "nothing was sent inside a host"
