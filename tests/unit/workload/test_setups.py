"""Memory of described setups, against figures that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetrl.spec.device_names import find_device
from hetrl.spec.job import Precision
from hetrl.spec.model_source import find_model
from hetrl.workload.memory import activation_bytes_per_token, logits_bytes, optimizer_workspace_bytes
from hetrl.workload.setup_remedies import devices_needed, remedies
from hetrl.workload.setups import (
    DOES_NOT_FIT,
    OFFLOADABLE,
    EngineSetup,
    Setup,
    TrainSetup,
    kv_tokens,
    setup_memory,
    train_terms,
)

GIB = 2**30
QWEN = find_model("Qwen2.5-7B")  # 7,615,616,512 parameters
H100 = find_device("H100")[0]


def terms(train: TrainSetup, moment: str = "optimizer_step") -> dict[str, float]:
    return train_terms(QWEN, train, "nvidia")[0][moment]


def test_sixteen_bytes_per_parameter() -> None:
    held = terms(TrainSetup())
    assert held["weights"] == held["gradients"] == 2 * 7_615_616_512
    assert held["optimizer"] == 12 * 7_615_616_512


def test_sharding_divides_what_it_names() -> None:
    whole, n = terms(TrainSetup(num_devices=8)), 8
    zero1, zero2 = (
        terms(TrainSetup(num_devices=n, sharding="zero1")),
        terms(TrainSetup(num_devices=n, sharding="zero2")),
    )
    fsdp = terms(TrainSetup(num_devices=n, sharding="fsdp"))
    assert zero1["optimizer"] == pytest.approx(whole["optimizer"] / n) and zero1["gradients"] == whole["gradients"]
    assert zero2["gradients"] == pytest.approx(whole["gradients"] / n) and zero2["weights"] == whole["weights"]
    assert fsdp["weights"] == pytest.approx(whole["weights"] / n)


def test_expert_parallel_divides_experts_only() -> None:
    moe = find_model("Qwen3-30B-A3B")
    experts = sum(layer.num_experts * layer.expert_parameters for layer in moe.layers)
    held = train_terms(moe, TrainSetup(num_devices=8, expert=8), "nvidia")[0]["optimizer_step"]
    assert held["weights"] == pytest.approx(2 * (moe.num_parameters - experts + experts / 8))


def test_lora_trains_adapters_only() -> None:
    held = terms(TrainSetup(precision=Precision(lora_rank=32)))
    # adapters of rank 32 on q, k, v, o, gate, up, down of 28 layers: 80,740,352 parameters
    adapters = 28 * 32 * ((3584 + 3584) + 2 * (3584 + 512) + (3584 + 3584) + 3 * (3584 + 18944))
    assert adapters == 80_740_352
    assert held["optimizer"] == 12 * adapters
    assert held["weights"] == 2 * (7_615_616_512 + adapters)


def test_offloaded_state_goes_to_the_host() -> None:
    train = TrainSetup(num_devices=8, sharding="fsdp", offload=frozenset(OFFLOADABLE))
    made = setup_memory(Setup(model=QWEN, device=H100, train=train))
    assert made.host["offloaded state"] == pytest.approx(16 * 7_615_616_512)
    assert made.phases["forward_backward"]["optimizer"] == 0
    assert made.phases["optimizer_step"]["optimizer"] == pytest.approx(12 * 7_615_616_512 / 8)
    on_host = setup_memory(Setup(model=QWEN, device=H100, train=replace(train, host_optimizer=True)))
    assert on_host.phases["optimizer_step"]["optimizer"] == 0


def test_pipeline_stages_hold_their_layers_and_micro_batches() -> None:
    moments = train_terms(QWEN, TrainSetup(num_devices=4, pipeline=4), "nvidia")[0]
    # the last stage has a quarter of the layers, the head and the logits of one micro-batch
    layers = sum(layer.num_parameters for layer in QWEN.layers) / 4
    assert moments["optimizer_step"]["weights"] == pytest.approx(2 * (layers + QWEN.embedding_parameters), rel=1e-3)


def test_reservation_is_not_need() -> None:
    made = setup_memory(Setup(model=QWEN, device=H100, engine=EngineSetup(utilization=0.9)))
    assert made.engine_reserved_bytes == pytest.approx(0.9 * H100.memory_bytes)
    assert made.phases["generate"]["weights"] == 2 * 7_615_616_512


def test_key_value_pool_in_whole_blocks() -> None:
    assert kv_tokens(100 * 16 * 10 + 15 * 10, 10) == 1600
    assert kv_tokens(0, 10) == 0


def test_help_is_offered_and_holds() -> None:
    setup = Setup(model=QWEN, device=H100, colocated=False, train=TrainSetup(num_devices=4))
    assert setup_memory(setup).verdict == DOES_NOT_FIT
    assert "full sharding (FSDP, ZeRO-3)" in remedies(setup)
    count = devices_needed(setup)
    assert count is not None and setup.train is not None
    enough = replace(setup, train=replace(setup.train, num_devices=count, sharding="fsdp"))
    assert setup_memory(enough).verdict != DOES_NOT_FIT
    assert remedies(enough) == []


@given(st.integers(0, 5), st.integers(1, 4), st.sampled_from(["zero1", "zero2", "fsdp"]))
def test_more_devices_never_need_more_each(doublings: int, micro: int, sharding: str) -> None:
    def peak(devices: int) -> float:
        train = TrainSetup(num_devices=devices, sharding=sharding, micro_batch_size=micro)
        return setup_memory(Setup(model=QWEN, device=H100, train=train)).peak_bytes

    # from two devices on: a single one has no communication buffers and gathers nothing
    assert peak(2 ** (doublings + 2)) <= peak(2 ** (doublings + 1))


def test_activations_of_the_paper() -> None:
    # a plain 4h MLP with as many key/value heads as heads: 34 s b h bytes, 10 + 24/T of arXiv 2205.05198
    model = find_model("GPT-2")
    layer = model.layers[0]
    for degree in (1, 2, 4):
        per_hidden = activation_bytes_per_token(model, layer, degree) / model.hidden_size
        assert per_hidden == pytest.approx(10 + 24 / degree, rel=0.01)


def test_eager_keeps_more() -> None:
    layer = QWEN.layers[0]
    fused, eager = (
        activation_bytes_per_token(QWEN, layer, 1, bytes_per_element=4, eager=each) for each in (False, True)
    )
    # 6 h; q, expanded k and v, and the output twice: 5 x 28 x 128; gate, its activation, up and their product
    assert eager == 4 * (6 * 3584 + 5 * 28 * 128 + 4 * 18944)
    assert fused < eager


def test_logits_and_workspace() -> None:
    assert logits_bytes(QWEN, 10, 2) == 10 * 76032 * 6
    assert optimizer_workspace_bytes(QWEN) == 3 * 152064 * 3584 * 4
