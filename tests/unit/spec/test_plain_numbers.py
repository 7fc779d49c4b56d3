"""Numbers without a unit are refused wherever a job file takes a quantity and the base unit cannot be meant."""

from __future__ import annotations

import pytest

from hetrl.errors import SpecError
from hetrl.spec.load import load_job
from hetrl.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds

JOB = """
workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B}
cluster_topology:
  nodes:
    - {id: a, gpus: 8, type: H100, NODE}
    - {id: b, gpus: 8, type: H100}
  TOPOLOGY
device_types:
  npu: {DEVICE}
"""
NPU = {"flops": "300TFLOPS", "memory": "64GB", "memory_bandwidth": "1TB/s"}
NODE_KEYS = (
    "memory", "host_ram", "network", "network_latency", "host_link", "host_memory_bandwidth", "uplink",
    "interconnect", "interconnect_latency",
)  # fmt: skip


def job(node: str = "rack: r", topology: str = "", **device: str) -> str:
    """A job with one more key of a node or of the topology, and a device type of its own."""
    npu = ", ".join(f"{key}: {value}" for key, value in (NPU | device).items())
    return JOB.replace("NODE", node).replace("TOPOLOGY", topology).replace("DEVICE", npu)


@pytest.mark.parametrize(
    "text",
    [
        *(job(f"{key}: 400") for key in NODE_KEYS),
        job(topology="rack_uplink: 400"),
        job(topology="links: [{between: [a, b], bandwidth: 400}]"),
        job(topology="links: [{between: [a, b], bandwidth: 400Gbps, latency: 30}]"),
        job(topology="network: {wan: {bandwidth: 400}}"),
        job(topology="link_matrix: {bandwidth: [[0, 400], [400, 0]]}"),
        *(job(**{key: "400"}) for key in NPU),
    ],
)
def test_a_number_that_lacks_its_unit_is_refused(text: str) -> None:
    assert load_job(job()).topology.num_devices == 16
    with pytest.raises(SpecError) as error:
        load_job(text)
    assert {problem.rule for problem in error.value.problems} == {"UNIT"}
    assert all(problem.found in ("400", "30") and "such as" in problem.valid for problem in error.value.problems)


def test_plain_numbers_in_the_base_unit_are_taken() -> None:
    assert parse_bandwidth(50e9) == 50e9 and parse_bandwidth(1_000_000) == 1e6
    assert parse_bytes(85_520_809_984) == 85_520_809_984 and parse_bytes("80B") == 80
    assert parse_seconds(30e-6) == 30e-6 and parse_seconds(0) == 0 and parse_seconds("30s") == 30
    assert parse_flops(9.89e14) == 9.89e14
    assert load_job(job("interconnect: 50000000000")).topology.nodes[0].intra_link.bytes_per_second == 50e9
