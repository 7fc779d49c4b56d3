"""FLOPs and bytes against published figures and hand calculations."""

import pytest

from hetrl.spec.job import Precision
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model
from hetrl.units import GIB
from hetrl.workload.flops import forward_flops, layer_forward_flops, touched_experts, train_flops
from hetrl.workload.memory import (
    activation_bytes_per_token,
    kv_bytes_per_token,
    stage_parameters,
    train_state,
    train_state_bytes_per_parameter,
)


def model(name: str) -> Model:
    return find_model(name)


LLAMA_70B = "meta-llama/Meta-Llama-3-70B-Instruct"
LLAMA_8B = "meta-llama/Meta-Llama-3-8B"


def test_forward_flops_are_two_per_matmul_parameter_plus_attention() -> None:
    llama = model(LLAMA_8B)
    matmul = llama.num_parameters - llama.embedding_parameters - llama.final_norm_parameters
    matmul -= sum(2 * llama.hidden_size for _ in llama.layers)  # norms
    tokens = 1000
    attention = 32 * 2 * tokens * (tokens + 1) / 2 * 32 * 2 * 128  # layers, FLOPs, causal pairs, heads, qk and v
    assert forward_flops(llama, num_sequences=1, new_tokens=tokens) == pytest.approx(
        2 * tokens * matmul + attention, rel=1e-12
    )


def test_training_is_three_or_four_forward_passes() -> None:
    llama = model(LLAMA_8B)
    forward = forward_flops(llama, num_sequences=4, new_tokens=512)
    assert train_flops(llama, num_sequences=4, tokens=512) == 3 * forward
    assert train_flops(llama, num_sequences=4, tokens=512, recompute=True) == 4 * forward


def test_decode_attends_to_the_cache() -> None:
    llama = model(LLAMA_8B)
    layer = llama.layers[0]
    short = layer_forward_flops(4096, layer, num_sequences=1, new_tokens=1, cached_tokens=0)
    long = layer_forward_flops(4096, layer, num_sequences=1, new_tokens=1, cached_tokens=1000)
    assert long - short == pytest.approx(2 * 1000 * 32 * 256)


def test_touched_experts() -> None:
    mixtral = model("mistralai/Mixtral-8x7B-v0.1")
    assert touched_experts(mixtral.layers[0], 1) == pytest.approx(2.0)
    assert touched_experts(mixtral.layers[0], 1000) == pytest.approx(8.0)


def test_actor_state_of_the_guide_is_1051_gib() -> None:
    state = train_state(
        model(LLAMA_70B), Precision(), first_layer=0, num_layers=80, tensor_parallel=1, num_replicas=1, sharding="none"
    )
    assert (state.weights + state.gradients + state.optimizer) / GIB == pytest.approx(1051, abs=1)


def test_bytes_per_parameter() -> None:
    assert train_state_bytes_per_parameter(Precision()).total == 16
    assert train_state_bytes_per_parameter(Precision(gradient_dtype="fp32")).total == 18
    assert train_state_bytes_per_parameter(Precision(dtype="fp32")).total == 16


def test_sharding_divides_what_it_says() -> None:
    def state(sharding: str, replicas: int) -> tuple[float, float, float]:
        found = train_state(
            model(LLAMA_8B),
            Precision(),
            first_layer=0,
            num_layers=32,
            tensor_parallel=1,
            num_replicas=replicas,
            sharding=sharding,
        )
        return found.weights, found.gradients, found.optimizer

    weights, gradients, optimizer = state("none", 4)
    assert state("zero1", 4) == (weights, gradients, optimizer / 4)
    assert state("fsdp", 4) == (weights / 4, gradients / 4, optimizer / 4)
    assert state("none", 1) == (weights, gradients, optimizer)


def test_stages_add_up_to_the_model() -> None:
    llama = model(LLAMA_70B)
    stages = [stage_parameters(llama, first, 20) for first in (0, 20, 40, 60)]
    assert sum(stages) == llama.num_parameters
    tied = model("Qwen/Qwen3-4B")
    copied = stage_parameters(tied, 0, 18) + stage_parameters(tied, 18, 18)
    assert copied == tied.num_parameters + tied.embedding_parameters  # the last stage holds the tied head again


@pytest.mark.parametrize(
    ("tensor_parallel", "expected"),
    [(1, 327_680), (8, 40_960), (16, 40_960)],  # 8 key/value heads: replicated beyond 8 ranks
)
def test_kv_bytes_per_rank(tensor_parallel: int, expected: int) -> None:
    assert (
        kv_bytes_per_token(model(LLAMA_70B), first_layer=0, num_layers=80, tensor_parallel=tensor_parallel) == expected
    )


def test_latent_cache_is_not_divided() -> None:
    deepseek = model("deepseek-ai/DeepSeek-V3")
    for tensor_parallel in (1, 8):
        assert kv_bytes_per_token(deepseek, first_layer=0, num_layers=61, tensor_parallel=tensor_parallel) == 70_272


def test_activations_of_a_plain_transformer_layer() -> None:
    """Full heads and a plain 4h MLP: the published 10 + 24/T per token and hidden element (arXiv 2205.05198)."""
    from dataclasses import replace

    llama = model("Qwen/Qwen2.5-7B-Instruct")
    hidden = llama.hidden_size
    layer = replace(
        llama.layers[0],
        num_heads=28,
        num_kv_heads=28,
        head_dim=128,
        v_head_dim=128,
        intermediate_size=4 * hidden,
        gated=False,
    )
    for degree in (1, 2, 4):
        assert activation_bytes_per_token(llama, layer, degree) == pytest.approx(hidden * (10 + 24 / degree), rel=1e-3)
