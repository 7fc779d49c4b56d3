"""Job files: the guide's file, defaults, overrides, and every way of describing a fleet."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from hetrl import catalog
from hetrl.errors import SpecError
from hetrl.spec.device_names import catalogue_devices
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl.spec.presets import benchmark_instance, benchmark_names

GUIDE = Path(__file__).parents[3] / "configs" / "rlhf_70b.yaml"
WORKFLOW = "workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B, reference_model: Qwen2.5-7B}\n"


def job_with(nodes: str, more: str = "") -> Job:
    return load_job(f"{WORKFLOW}cluster_topology:\n  nodes: {nodes}\n{more}")


def test_guide_file_has_the_defaults_of_the_benchmarks() -> None:
    job = load_job(GUIDE)
    assert [(node.device_type.name, node.num_devices) for node in job.topology.nodes] == [
        ("H100", 8),
        ("A100-80GB", 8),
        ("L40S", 4),
    ]
    assert (job.batch.num_prompts, job.batch.responses_per_prompt, job.batch.prompt_tokens) == (256, 1, 1024)
    assert (job.batch.mean_response_tokens, job.batch.max_response_tokens, job.batch.num_mini_batches) == (512, 1024, 4)
    assert job.optimizer.memory_safety_margin == 0.15
    assert job.assumed["batch.num_prompts"] == "256"
    assert "optimizer.memory_safety_margin" not in job.assumed
    assert any("A100-40GB" in warning for warning in job.warnings)


def test_guide_links_are_one_direction() -> None:
    topology = load_job(GUIDE).topology
    assert [node.intra_link.bytes_per_second for node in topology.nodes] == [450e9, 300e9, 31.5e9]
    assert topology.node_link(0, 1).bytes_per_second == 50e9  # 400 Gbps, the slower card
    assert topology.node_link(1, 2).bytes_per_second == 12.5e9
    assert topology.node_link(0, 1).latency_seconds == pytest.approx(30e-6)


def test_guide_hosts_come_from_the_usual_instances() -> None:
    nodes = load_job(GUIDE).topology.nodes
    assert [node.host_ram_bytes / 2**30 for node in nodes] == [2048, 1152, 384]
    assert [node.cpu_cores for node in nodes] == [192, 96, 48]
    assert sum(node.usd_per_hour or 0 for node in nodes) == pytest.approx(55.04 + 27.44705 + 10.49264)


@pytest.mark.parametrize(
    ("node", "price", "said"),
    [
        (
            "gpus: 2, type: A100-80GB",
            27.44705 * 2 / 8,
            "6.86176 (2/8 of p4de.24xlarge, which has 8 devices for 27.44705",
        ),
        ("gpus: 2, instance: p4de.24xlarge", 27.44705, "27.44705 (p4de.24xlarge, "),
        ("gpus: 8, type: A100-80GB", 27.44705, "27.44705 (p4de.24xlarge, "),
    ],
)
def test_a_part_of_an_instance_costs_its_part_unless_the_instance_is_named(node: str, price: float, said: str) -> None:
    job = job_with(f"[{{id: a, {node}}}]")
    assert job.topology.nodes[0].usd_per_hour == pytest.approx(price, rel=1e-12)
    assert job.assumed["cluster_topology.nodes[0].usd_per_hour"].startswith(said)


@pytest.mark.parametrize("device", sorted({row["device"] for row in catalog.read("instances.yaml").values()}))
def test_a_device_costs_what_it_costs_in_its_usual_instance_however_many_there_are(device: str) -> None:
    rows = catalog.read("instances.yaml").values()
    rates = [row["usd_per_hour"] / row["count"] for row in rows if row["device"] == device and "usd_per_hour" in row]
    dtype = "fp32" if "fp32" in catalogue_devices()[device].flops_per_second else "bf16"
    for number in (1, 2, 3, 5, 8, 16):
        nodes = f"[{{id: a, gpus: {number}, type: {device}}}, {{id: trains, gpus: 1, type: H100}}]"
        job = job_with(nodes, f"precision: {{dtype: {dtype}}}\n")
        price = job.topology.nodes[0].usd_per_hour
        assert price is None or any(price == pytest.approx(rate * number, rel=1e-12) for rate in rates)


def test_a_file_and_its_text_give_the_same_job() -> None:
    assert load_job(GUIDE).topology == load_job(GUIDE.read_text()).topology


def test_overrides_replace_what_the_file_says() -> None:
    job = load_job(
        GUIDE, {"cluster_topology.nodes[1].type": "A100-40GB", "optimizer.solver": "ilp", "batch.num_prompts": 64}
    )
    assert job.topology.nodes[1].device_type.name == "A100-40GB"
    assert (job.optimizer.solver, job.batch.num_prompts) == ("ilp", 64)
    assert job.warnings == ()


def test_override_of_a_missing_list_entry_is_an_input_error() -> None:
    with pytest.raises(SpecError, match="no such list entry"):
        load_job(GUIDE, {"cluster_topology.nodes[7].type": "H100"})


def test_margin_defaults_to_a_tenth_where_the_file_names_none() -> None:
    job = job_with("[{id: a, gpus: 8, type: H100}]")
    assert job.optimizer.memory_safety_margin == 0.10
    assert job.assumed["optimizer.memory_safety_margin"] == "0.1"


def test_group_algorithms_sample_eight_responses() -> None:
    assert job_with("[{id: a, gpus: 8, type: H100}]").batch.responses_per_prompt == 8


def test_instance_gives_everything() -> None:
    (node,) = job_with("[{id: a, instance: p4d.24xlarge}]").topology.nodes
    assert (node.device_type.name, node.num_devices, node.nic_bytes_per_second) == ("A100-40GB", 8, 50e9)


def test_instance_decides_an_ambiguous_type() -> None:
    job = job_with("[{id: a, instance: p4d.24xlarge, type: A100}]")
    assert job.topology.nodes[0].device_type.name == "A100-40GB"
    assert job.warnings == ()


def test_memory_replaces_the_catalogue_figure() -> None:
    (node,) = job_with("[{id: a, gpus: 2, type: H100, memory: 60GiB}]").topology.nodes
    assert node.device_type.memory_bytes == 60 * 2**30
    assert node.device_type.name != "H100"


def test_own_device_types() -> None:
    job = load_job(
        WORKFLOW
        + """
device_types:
  my-npu: {flops: {bf16: 300TFLOPS, fp32: 75TFLOPS}, memory: 64GB, memory_bandwidth: 1.2TB/s, source: vendor's page}
  slow: {like: A100-80GB, memory_bandwidth: 1TB/s}
cluster_topology:
  nodes:
    - {id: a, gpus: 4, type: my-npu, interconnect: 100GB/s, network: 200Gbps, host_ram: 512GiB, cpu_cores: 64}
    - {id: b, gpus: 4, type: slow}
"""
    )
    npu, slow = (node.device_type for node in job.topology.nodes)
    assert (npu.flops_per_second["bf16"], npu.memory_bytes, npu.memory_bytes_per_second) == (3e14, 64e9, 1.2e12)
    assert (slow.vendor, slow.flops_per_second["bf16"], slow.memory_bytes_per_second) == ("nvidia", 312e12, 1e12)
    assert job.topology.nodes[0].intra_link.bytes_per_second == 100e9
    assert job.topology.nodes[0].nic_bytes_per_second == 25e9


def test_cpu_devices_need_no_instance() -> None:
    job = load_job(
        WORKFLOW
        + """
device_types:
  cpu-fast: {vendor: cpu, flops: {fp32: 50GFLOPS}, memory: 2GiB, memory_bandwidth: 10GB/s}
cluster_topology: {nodes: [{id: a, gpus: 1, type: cpu-fast, cpu_cores: 1}]}
precision: {dtype: fp32}
"""
    )
    assert job.warnings == ()
    assert job.topology.nodes[0].usd_per_hour is None


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("NVLink-900G", 450e9),
        ("NVLink-600G", 300e9),
        ("nvlink4", 450e9),
        ("PCIe-Gen4", 31.5e9),
        ("PCIe Gen5 x16", 63e9),
        ("PCIe-4.0", 31.5e9),
        ("50GB/s", 50e9),
        ("400Gbps", 50e9),
    ],
)
def test_interconnects_are_one_direction(text: str, bytes_per_second: float) -> None:
    (node,) = job_with(f"[{{id: a, gpus: 2, type: H100, interconnect: '{text}'}}]").topology.nodes
    assert node.intra_link.bytes_per_second == pytest.approx(bytes_per_second)


def test_links_by_pair_are_directed() -> None:
    topology = job_with(
        "[{id: a, gpus: 1, type: H100}, {id: b, gpus: 1, type: H100}, {id: c, gpus: 1, type: H100}]",
        "  links: [{from: a, to: b, bandwidth: 1Gbps, latency: 5ms},"
        " {between: [b, c], bandwidth: 2Gbps, latency: 1ms}]\n",
    ).topology
    assert topology.node_link(0, 1).bytes_per_second == 1.25e8
    assert topology.node_link(1, 0).bytes_per_second == 12.5e9
    assert topology.node_link(1, 2) == topology.node_link(2, 1)
    assert topology.node_link(2, 1).latency_seconds == 1e-3


def test_links_by_matrix() -> None:
    topology = job_with(
        "[{id: a, gpus: 1, type: H100}, {id: b, gpus: 1, type: H100}]",
        "  link_matrix: {bandwidth: [[0, 10Gbps], [20Gbps, 0]], latency: [[0, 1ms], [2ms, 0]]}\n",
    ).topology
    assert topology.node_link(0, 1).bytes_per_second == 1.25e9
    assert topology.node_link(1, 0).latency_seconds == 2e-3


def test_links_by_measured_file(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("from,to,bytes_per_second,latency_seconds\na,b,3e9,1e-4\n")
    job_file = tmp_path / "job.yaml"
    job_file.write_text(
        WORKFLOW + "cluster_topology: {links_file: links.csv, "
        "nodes: [{id: a, gpus: 1, type: H100}, {id: b, gpus: 1, type: H100}]}\n"
    )
    link = load_job(job_file).topology.node_link(0, 1)
    assert (link.bytes_per_second, link.latency_seconds, link.kind) == (3e9, 1e-4, "measured")


def test_levels_use_the_smallest_one_that_two_nodes_share() -> None:
    topology = job_with(
        "[{id: a, gpus: 8, type: H100, rack: r1}, {id: b, gpus: 8, type: H100, rack: r1},"
        " {id: c, gpus: 8, type: H100, rack: r2}, {id: d, gpus: 8, type: H100, region: far}]",
        "  network: {rack: {bandwidth: 400Gbps, latency: 20us}, zone: {bandwidth: 100Gbps, latency: 60us},"
        " wan: {bandwidth: 1Gbps, latency: 50ms}}\n  rack_uplink: 1.6Tbps\n",
    ).topology
    assert [topology.node_link(0, other).bytes_per_second * 8e-9 for other in (1, 2, 3)] == pytest.approx([400, 100, 1])
    assert topology.nodes[0].uplink_bytes_per_second == 2e11


def test_nodes_of_one_nvlink_domain_are_linked_by_nvlink() -> None:
    topology = job_with("[{id: rack, count: 3, instance: p6e-gb200.36xlarge, nvlink_domain: x}]").topology
    assert [node.id for node in topology.nodes] == ["rack-0", "rack-1", "rack-2"]
    assert topology.node_link(0, 2).bytes_per_second == 900e9
    assert topology.same_tensor_domain([0, 11])


def test_parts_of_one_host_are_one_tensor_domain() -> None:
    topology = job_with(
        "[{id: a, gpus: 1, type: RTX-4090, host: box}, {id: b, gpus: 1, type: RTX-3090, host: box}]"
    ).topology
    assert topology.same_tensor_domain([0, 1])


def test_models_by_directory_and_inline(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "intermediate_size": 128, "vocab_size": 256}'
    )
    job_file = tmp_path / "job.yaml"
    job_file.write_text(
        "workflow: {algorithm: GRPO, actor_model: tiny}\ncluster_topology: {nodes: [{id: a, gpus: 1, type: H100}]}\n"
    )
    # embedding and head 2 x 256 x 64; a layer: 4 x 64 x 64 + 3 x 64 x 128 + 2 x 64; final norm 64
    assert load_job(job_file).workflow.task("actor_train").model.num_parameters == 2 * 16384 + 2 * 41088 + 64


def test_critic_and_reward_have_scalar_heads() -> None:
    roles = load_job(GUIDE).workflow.roles
    assert roles["reward"].num_parameters == roles["critic"].num_parameters == 7_504_928_768
    assert roles["actor"].num_parameters == 70_553_706_496


def test_histogram_gives_mean_and_maximum() -> None:
    job = job_with("[{id: a, gpus: 1, type: H100}]", "batch: {response_histogram: [[100, 1], [300, 3]]}\n")
    assert (job.batch.mean_response_tokens, job.batch.max_response_tokens) == (250, 300)


@pytest.mark.parametrize("name", benchmark_names())
def test_every_benchmark_instance_loads(name: str) -> None:
    job = benchmark_instance(name)
    assert job.warnings == ()
    devices = {"guide20": 20, "paper64": 64, "synthe": 0, "guide": 16}
    expected = next(count for prefix, count in devices.items() if name.startswith(prefix))
    assert job.topology.num_devices == (expected or int(name.removeprefix("synthetic")))


def test_paper_wan_links_follow_their_formula() -> None:
    topology = benchmark_instance("paper64_wan/PPO").topology
    link = topology.node_link(2, 5)
    assert link.latency_seconds == pytest.approx((5 + 5 * (7 % 6)) * 1e-3)
    assert link.bytes_per_second == pytest.approx((1.9 + 0.62 * (10 % 6)) * 1e9 / 8)


@pytest.mark.parametrize(
    ("device", "name", "one_direction"),
    [
        ("MI300X", "xGMI", 64e9),
        ("MI300X", "Infinity Fabric", 64e9),
        ("Trainium2", "NeuronLink", 160e9),
        ("Trainium2", "NeuronLink-v3", 160e9),
        ("A100-80GB", "NVLink", 300e9),
    ],
)
def test_a_family_of_links_means_the_device_s_own_link(device: str, name: str, one_direction: float) -> None:
    job = job_with(f"[{{id: node, gpus: 8, type: {device}, interconnect: {name}}}]")
    assert job.topology.nodes[0].intra_link.bytes_per_second == one_direction
    assert "cluster_topology.nodes[0].interconnect" in job.assumed


def test_a_family_that_a_device_does_not_have_is_refused_with_its_own() -> None:
    with pytest.raises(SpecError, match=r"interconnect: not a link of MI300X.*Infinity Fabric"):
        job_with("[{id: node, gpus: 8, type: MI300X, interconnect: NeuronLink}]")


def test_a_described_device_may_not_bear_the_name_of_a_catalogue_one() -> None:
    more = "device_types: {H100: {flops: 300TFLOPS, memory: 64GB, memory_bandwidth: 1TB/s}}"
    with pytest.raises(SpecError, match=r"device_types\.H100: is a device of the catalogue.*like: H100"):
        job_with("[{id: node, gpus: 8, type: H100}]", more)


NODE_MISTAKES = {
    "unknown device": "{id: a, gpus: 4, type: L4O}",
    "unknown key": "{id: b, gpu: 4, type: L4}",
    "not a valid count": "{id: c, gpus: four, type: L4}",
    "unknown interconnect": "{id: d, gpus: 4, type: L4, interconnect: Token-Ring}",
    "not a bandwidth": "{id: e, gpus: 4, type: L4, network: 400gbps}",
    "not a size": "{id: f, gpus: 4, type: L4, host_ram: much}",
    "node id used twice": "{id: good, gpus: 4, type: L4}",
}


@pytest.mark.parametrize("pair", list(combinations(NODE_MISTAKES, 2)), ids=" and ".join)
def test_one_wrong_node_does_not_hide_another(pair: tuple[str, str]) -> None:
    nodes = ", ".join(("{id: good, gpus: 8, type: H100}", *(NODE_MISTAKES[each] for each in pair)))
    text = f"workflow: {{algorithm: GRPO, actor_model: Qwen2.5-7B}}\ncluster_topology: {{nodes: [{nodes}]}}\n"
    with pytest.raises(SpecError) as caught:
        load_job(text)
    assert [each for each in pair if each not in str(caught.value)] == []


def test_assumed_figures_have_no_digits_that_nobody_gave() -> None:
    text = (
        "workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B}\n"
        "cluster_topology: {nodes: [{id: a, gpus: 3, type: A100-80GB}]}\n"
        "batch: {response_histogram: [[200, 5], [1000, 1]]}\n"
    )
    job = load_job(text)
    assert job.batch.mean_response_tokens == pytest.approx(2000 / 6)
    assert job.assumed["batch.mean_response_tokens"] == "333.333"
    assert [value for value in job.assumed.values() if re.search(r"\d\.\d{6}", value)] == []
