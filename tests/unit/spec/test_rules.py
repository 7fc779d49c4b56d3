"""Hard rules: what they refuse, what they offer instead, and that their offers hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetrl.spec import environment_rules, fleet_rules, rules
from hetrl.spec.load import load_job
from hetrl.spec.model_source import find_model, known_models
from hetrl.spec.topology import Topology


def fleet(nodes: str) -> Topology:
    return load_job(
        f"workflow: {{algorithm: GRPO, actor_model: Qwen2.5-7B}}\ncluster_topology: {{nodes: {nodes}}}\n"
    ).topology


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("Llama-3-8B", [1, 2, 4, 8, 16]),
        ("Qwen2.5-7B", [1, 2, 4]),
        ("Qwen2.5-32B", [1, 2, 4, 8]),
        ("Qwen3-14B", [1, 2, 4, 8]),
        ("Phi-4", [1, 2, 5, 10]),
        ("DeepSeek-V3", [1, 2, 4, 8, 16]),
        ("gpt-oss-20b", [1, 2, 4, 8, 16]),
    ],
)
def test_usable_degrees_up_to_16_are_those_of_the_engine(model: str, degrees: list[int]) -> None:
    assert list(rules.valid_tensor_degrees(find_model(model), 16)) == degrees


@given(st.sampled_from(known_models()), st.integers(1, 200), st.booleans(), st.booleans())
def test_degrees_are_valid_exactly_when_nothing_is_violated(
    name: str, degree: int, quantized: bool, experts: bool
) -> None:
    model = find_model(name)
    options = {"quantized": quantized, "expert_parallel": experts}
    problems = rules.tensor_parallel_problems(model, degree, **options)
    assert (not problems) == (degree in rules.valid_tensor_degrees(model, **options))


def test_replication_of_key_value_heads_can_be_ruled_out() -> None:
    model = find_model("Llama-3-70B")
    assert rules.tensor_parallel_problems(model, 16) == []
    (problem,) = rules.tensor_parallel_problems(model, 16, kv_replication=False)
    assert problem.rule == "TP_KV_HEADS"


@given(st.integers(1, 300), st.integers(1, 300))
def test_offered_splits_hold(num_layers: int, num_stages: int) -> None:
    if num_stages > num_layers:
        (problem,) = rules.pipeline_problems(num_layers, num_stages=num_stages)
        assert problem.rule == "PP_SPLIT"
        return
    stages = rules.split_layers(num_layers, num_stages)
    assert rules.pipeline_problems(num_layers, stages) == []
    assert max(stages) - min(stages) <= 1


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 40), st.integers(0, 40))
def test_given_ends_either_add_up_or_are_refused(num_layers: int, num_stages: int, first: int, last: int) -> None:
    stages, problems = rules.ends_split(num_layers, num_stages, first, last)
    assert bool(problems) == (sum(stages) != num_layers or len(stages) != num_stages or min(stages, default=0) < 1)


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_equal_shares(num_sequences: int, replicas: int, micro: int, group: int) -> None:
    problems = rules.batch_problems(num_sequences, replicas, micro_batch_size=micro, group_size=group)
    share, rest = divmod(num_sequences, replicas)
    allowed = rest == 0 and share % micro == 0 and share % group == 0 and share > 0
    assert (not problems) == allowed


def test_uneven_shares_need_one_unit_each() -> None:
    assert rules.batch_problems(13, 4, uneven=True) == []
    assert rules.batch_problems(3, 4, uneven=True)[0].rule == "BATCH_SPLIT"
    assert rules.batch_problems(24, 4, group_size=8, uneven=True)[0].rule == "BATCH_SPLIT"


def test_experts() -> None:
    moe, dense = find_model("Qwen3-30B-A3B"), find_model("Qwen3-8B")
    assert rules.expert_parallel_problems(moe, 8) == []
    assert [p.rule for p in rules.expert_parallel_problems(moe, 3)] == ["EP_DIVIDES"]
    assert [p.rule for p in rules.expert_parallel_problems(moe, 8, supported=False)] == ["EP_UNSUPPORTED"]
    assert [p.rule for p in rules.expert_parallel_problems(dense, 2)] == ["EP_DENSE"]
    assert [p.rule for p in rules.expert_parallel_problems(moe, 8, group_size=4)] == ["EP_DIVIDES"]


@given(st.integers(1, 300000), st.integers(1, 64), st.integers(1, 256))
def test_padded_vocabulary_is_the_least_that_divides(vocab: int, degree: int, rows: int) -> None:
    padded = rules.padded_vocab(vocab, degree, total_multiple=1, rows_multiple=rows)
    assert padded >= vocab and padded % degree == 0 and (padded // degree) % rows == 0
    assert padded - degree * rows < vocab


def test_tensor_groups_stay_inside_a_node_and_a_type() -> None:
    topology = fleet("[{id: a, gpus: 5, type: H100}, {id: b, gpus: 4, type: A100-80GB}]")
    assert fleet_rules.tensor_groups(topology, 4) == ((0, 1, 2, 3), (5, 6, 7, 8))
    assert [p.rule for p in fleet_rules.tensor_group_problems(topology, [3, 4, 5, 6])] == [
        "TP_ONE_NODE",
        "TP_ARCHITECTURE",
    ]
    assert fleet_rules.tensor_group_problems(topology, [0, 1]) == []
    assert [p.rule for p in fleet_rules.tensor_group_problems(topology, [0, 0])] == ["DEVICE_TWICE"]
    assert [p.rule for p in fleet_rules.tensor_group_problems(topology, [0, 99])] == ["DEVICE_ID"]


def test_vendors_never_share_a_collective() -> None:
    topology = fleet(
        "[{id: a, gpus: 2, type: H100}, {id: b, gpus: 2, type: MI300X}, {id: c, gpus: 1, type: Trainium2}]"
    )
    assert [p.rule for p in fleet_rules.collective_problems(topology, [1, 2])] == ["VENDOR_MIX"]
    assert fleet_rules.collective_problems(topology, [2, 3]) == []


def test_dtypes_of_devices() -> None:
    topology = fleet(
        "[{id: a, gpus: 1, type: V100-SXM2-32GB}, "
        "{id: b, gpus: 1, type: A100-80GB}, {id: c, gpus: 1, type: Inferentia2}]"
    )
    v100, a100, inferentia = topology.device_types
    assert [p.rule for p in fleet_rules.dtype_problems(v100, "bf16")] == ["DTYPE_SUPPORT"]
    assert [p.rule for p in fleet_rules.dtype_problems(a100, "fp8", use="kv_cache")] == ["DTYPE_SUPPORT"]
    assert [p.rule for p in fleet_rules.dtype_problems(inferentia, "bf16")] == ["TRAIN_SUPPORT"]
    assert fleet_rules.dtype_problems(inferentia, "bf16", use="generate") == []


def test_idle_devices_are_a_remark_and_too_many_ranks_a_refusal() -> None:
    assert [p.rule for p in fleet_rules.world_problems(8, tensor_parallel=3)] == ["DEVICES_IDLE"]
    assert [p.rule for p in fleet_rules.world_problems(8, tensor_parallel=4, replicas=3)] == ["WORLD_SIZE"]
    assert fleet_rules.world_problems(8, tensor_parallel=2, pipeline_parallel=2) == []


def test_interface_towards_the_peer_is_taken() -> None:
    interfaces = {"lo": "127.0.0.1/8", "eth0": "192.168.1.4/24", "ib0": "10.0.0.4/16"}
    assert environment_rules.routable_interface(interfaces, "10.0.3.9") == ("ib0", [])
    assert environment_rules.routable_interface(interfaces, "192.168.1.9") == ("eth0", [])
    assert environment_rules.routable_interface({"lo": "127.0.0.1/8"}, "10.0.3.9")[1][0].rule == "INTERFACE"
