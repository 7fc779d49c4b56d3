"""Published end-to-end rows: reading them, units, and calibrations that cannot be negative."""

from __future__ import annotations

import numpy as np
import pytest

from hetrl.cost.end_to_end import TERMS, Composer, builtin_coefficients, seconds_of
from hetrl.cost.model import CostModel
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.scenarios import Inexpressible, found_model, scenario_of, seconds_measured, value_of
from hetrl.cost.unit import UnitCosts
from hetrl.spec.job import Precision

COLUMNS = """category gpu num_gpus model precision framework algo sync_mode train_parallel gen_parallel global_batch
micro_batch seq_or_input_len output_len mean_seq_len metric value unit notes source licence suspect"""
EMPTY = dict.fromkeys(COLUMNS.split(), "")
TRAIN = EMPTY | {
    "category": "train_step",
    "gpu": "h100_sxm",
    "num_gpus": "16",
    "model": "MPT-7b",
    "precision": "amp_bf16",
    "framework": "llm-foundry/Composer FSDP",
    "train_parallel": "FSDP=FULL_SHARD act_ckpt=True act_offload=False",
    "global_batch": "64",
    "micro_batch": "2",
    "seq_or_input_len": "2048",
    "metric": "tokens_per_s",
    "unit": "tok/s",
}
GENERATE = EMPTY | {
    "category": "generation_batch",
    "gpu": "h100_sxm",
    "num_gpus": "1",
    "model": "meta-llama/Meta-Llama-3-8B",
    "precision": "16-bit",
    "framework": "vLLM",
    "gen_parallel": "TP=1",
    "global_batch": "16",
    "seq_or_input_len": "512",
    "output_len": "256",
    "metric": "batch_latency",
    "unit": "s",
}

COMPOSER = Composer(OperatorLibrary.builtin(), builtin_coefficients())
MEGATRON = TRAIN | {
    "gpu": "b200_sxm",
    "num_gpus": "64",
    "model": "gpt-oss-120b",
    "precision": "bf16",
    "framework": "Megatron-Bridge",
    "train_parallel": "TP=1 PP=1 CP=1 VP=n/a EP=8",
    "global_batch": "1280",
    "micro_batch": "4",
    "seq_or_input_len": "4096",
}


def train_terms(**change: str) -> dict[str, float]:
    return dict(zip(TERMS["train_step"], COMPOSER.terms(scenario_of(MEGATRON | change)).tolist(), strict=True))


def test_mpt_shapes_give_the_published_counts() -> None:
    """n_params of the table (llm-foundry README) for sequences of 2,048 tokens."""
    assert found_model("MPT-125m").num_parameters == 125_311_488
    assert found_model("MPT-13b").num_parameters == 12_853_954_560
    assert found_model("MPT-70b").num_parameters == 64_862_437_376


def test_units_of_rates() -> None:
    scenario = scenario_of(TRAIN)
    assert scenario.recompute
    assert value_of(scenario, 2.0) == 64 * 2048 / 2.0
    assert seconds_measured(scenario, value_of(scenario, 2.0)) == 2.0
    per_gpu = scenario_of(TRAIN | {"metric": "tokens_per_s_per_gpu", "unit": "tok/s/gpu"})
    assert value_of(per_gpu, 2.0) == 64 * 2048 / 2.0 / 16
    unsure = scenario_of(TRAIN | {"unit": "tok/s (page heads the column out tok/s; multi-GPU rows may be per GPU)"})
    assert value_of(unsure, 2.0) == 64 * 2048 / 2.0 / 16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"suspect": "BELOW_WEIGHT_READ_BOUND"}, "suspect"),
        ({"model": "Nobody-7B"}, "not in the catalogue"),
        ({"gpu": "nonesuch9000"}, "unknown GPU"),
        ({"precision": "NVFP4"}, "no operator data"),
        ({"train_parallel": ""}, "not stated"),
        ({"global_batch": "many"}, "not stated as a number"),
        ({"metric": "model_tflops_per_gpu"}, "not composed"),
    ],
)
def test_rows_that_cannot_be_expressed_say_why(change: dict[str, str], reason: str) -> None:
    with pytest.raises(Inexpressible, match=reason):
        scenario_of(TRAIN | change)


def test_training_terms_by_hand() -> None:
    """Two micro-batches of 2 sequences on each of 16 GPUs, 4 passes with recompute, 32 layers."""
    terms = dict(zip(TERMS["train_step"], COMPOSER.terms(scenario_of(TRAIN)), strict=True))
    assert terms["micro_batches"] == 2
    assert terms["layer_passes"] == 2 * 4 * 32
    assert terms["optimizer"] == pytest.approx(2 * 16 * found_model("MPT-7b").num_parameters / 16 / 3350e9, rel=1e-3)
    flops = 4 * 2 * (2 * 2 * 2048) * 6.6e9
    assert flops / 989e12 < terms["projections"] < 2 * flops / 989e12


def test_experts_are_spread_before_their_gradients_travel() -> None:
    """Of experts on 8 ranks each keeps an eighth; weights and gradients of that cross the network of 50 GB/s."""
    model = found_model("gpt-oss-120b")
    layer = model.layers[0]
    experts = model.num_layers * layer.num_experts * 3 * model.hidden_size * layer.moe_intermediate_size
    own = model.num_parameters - experts * 7 / 8
    assert train_terms()["weights"] == pytest.approx(2 * 2 * own * 63 / 64 / 5e10, rel=1e-6)


def test_routed_tokens_stay_on_the_links_of_a_node_while_they_can() -> None:
    inside, across = (
        train_terms()["activations"],
        train_terms(train_parallel="TP=1 PP=1 CP=1 VP=n/a EP=64")["activations"],
    )
    assert across / inside == pytest.approx((9e11 / 5e10) * (63 / 64) / (7 / 8))


def test_adapters_have_no_optimizer_states_to_speak_of() -> None:
    assert train_terms()["optimizer"] > 0
    assert train_terms(algo="LoRA")["optimizer"] == 0


def test_sequences_that_route_alike_read_fewer_experts() -> None:
    """8 experts of which a token takes 2: two independent tokens reach 8 (1 - 0.75^2) = 3.5."""
    costs, alike = (
        UnitCosts(CostModel.builtin(), Precision(dtype="bf16"), routing_exponent=each) for each in (1.0, 0.0)
    )
    model, device = found_model("mistralai/Mixtral-8x7B-v0.1"), scenario_of(GENERATE).device
    (many, _), (few, _) = (each.decode_table(device, model, 4, 0) for each in (costs, alike))
    assert many[0] == few[0], "a single token"
    assert 1.3 < many[1] / few[1] < 3.5 / 2
    assert few[-1] < many[-1]


def test_more_work_takes_longer() -> None:
    composer, known = COMPOSER, builtin_coefficients()

    def seconds(**change: str) -> float:
        scenario = scenario_of(GENERATE | change)
        return seconds_of(scenario, composer.terms(scenario), known)

    assert seconds(global_batch="64") > seconds()
    assert seconds(output_len="512") > 1.8 * seconds()
    assert seconds(model="meta-llama/Llama-2-7b-hf", global_batch="64", output_len="4096", seq_or_input_len="4096") > 64


def test_a_full_cache_makes_waves() -> None:
    """Llama-2-7B keeps 0.5 MB per token: 64 sequences of 4,096 tokens need 137 GB, so 80 GB run them in waves."""
    composer = COMPOSER
    long = GENERATE | {"model": "meta-llama/Llama-2-7b-hf", "seq_or_input_len": "2048", "output_len": "2048"}
    index = TERMS["generation"].index("iterations")
    assert composer.terms(scenario_of(long | {"global_batch": "16"}))[index] == 2048
    assert composer.terms(scenario_of(long | {"global_batch": "64"}))[index] == 3 * 2048


def test_shipped_calibrations_are_complete_and_not_negative() -> None:
    for key, values in builtin_coefficients().items():
        assert len(values) == len(TERMS[key.partition("|")[0]]), key
        assert min(values) >= 0
        assert max(values) > 0


def test_fitted_coefficients_recover_invented_ones() -> None:
    pytest.importorskip("scipy")
    from hetrl_profiler.fit.end_to_end import fit_coefficients

    rng = np.random.default_rng(0)
    true = np.array([1.2, 2.0, 0.5, 0.8, 10.0, 1e-3, 0.02])
    scenarios = [scenario_of(TRAIN) for _ in range(60)]
    terms = [rng.uniform(0.5, 1.5, 7) * np.array([1.0, 0.5, 0.3, 0.2, 0.01, 100, 4]) for _ in scenarios]
    fitted = fit_coefficients(scenarios, terms, [float(each @ true) for each in terms])
    assert fitted["train_step"] == pytest.approx(tuple(true), rel=1e-6)
