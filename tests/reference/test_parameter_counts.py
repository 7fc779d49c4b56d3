"""Parameter counts against transformers: the real classes, built on meta tensors, must have exactly as many."""

from __future__ import annotations

import pytest

from hetrl import catalog
from hetrl.spec.hf_config import model_from_config
from hetrl.spec.hf_families import canonical_name, families
from hetrl.spec.model_source import find_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PLAIN = {
    "hidden_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 224,
    "vocab_size": 1000,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 40, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 6,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
# What a family needs beyond PLAIN; families with other key names stand alone in OTHER.
MORE: dict[str, dict[str, object]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "lm_head_bias": True},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "qwen2_moe": {"num_experts": 6, "shared_expert_intermediate_size": 80, **EXPERTS},
    "qwen3_moe": {"num_experts": 6, "mlp_only_layers": [1], "head_dim": 32, **EXPERTS},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32},
    "glm": {"attention_bias": True, "head_dim": 16},
    "glm4": {"attention_bias": True, "head_dim": 16},
    "seed_oss": {"head_dim": 16},
    "ministral3": {"head_dim": 16},
    "ernie4_5": {"head_dim": 16},
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        **EXPERTS,
    },
    "glm4_moe": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "use_qk_norm": True,
        "head_dim": 16,
        "n_group": 1,
        "topk_group": 1,
        **EXPERTS,
    },
    "deepseek_v2": {**LATENT, **EXPERTS, "n_group": None, "topk_group": None},
    "deepseek_v3": {**LATENT, **EXPERTS, "n_group": 1, "topk_group": 1},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 40,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 3,
        "moe_layer_interval": 1,
    },
    "llama4_text": {
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 300,
        "head_dim": 16,
        "num_experts_per_tok": 1,
    },
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 40,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
    },
}
OTHER: dict[str, dict[str, object]] = {
    "gpt2": {"n_embd": 96, "n_layer": 5, "n_head": 6, "vocab_size": 1000, "n_positions": 64},
    "gptj": {"n_embd": 96, "n_layer": 5, "n_head": 6, "rotary_dim": 8, "vocab_size": 1000},
    "opt": {
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "ffn_dim": 224,
        "vocab_size": 1000,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 96,
    },
    "bloom": {"hidden_size": 96, "n_layer": 5, "n_head": 6, "vocab_size": 1000},
    "gpt_neox": {
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "intermediate_size": 224,
        "vocab_size": 1000,
        "max_position_embeddings": 64,
    },
}
# Language models that transformers only builds as part of a multimodal model.
NESTED = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}


def count_with_transformers(config: dict[str, object]) -> int:
    """Count parameters of the real class on meta tensors, router correction terms (buffers) included."""
    values = dict(config)
    kind = values.pop("model_type")
    hf_config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind](**values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(hf_config)
    corrections = sum(tensor.numel() for name, tensor in model.named_buffers() if "correction_bias" in name)
    return sum(tensor.numel() for tensor in model.parameters()) + corrections


@pytest.mark.parametrize("family", sorted(set(families()) - NESTED))
def test_every_family_counts_like_its_class(family: str) -> None:
    config = {"model_type": family, **(OTHER.get(family) or {**PLAIN, **MORE.get(family, {})})}
    assert model_from_config(config, name=family).num_parameters == count_with_transformers(config)


@pytest.mark.parametrize("family", sorted(NESTED))
def test_nested_language_models_count_like_their_class(family: str) -> None:
    module = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family].__module__.replace(
        "configuration_", "modeling_"
    )
    modeling = __import__(module, fromlist=["*"])
    config = {"model_type": family, **PLAIN, "head_dim": 16, "tie_word_embeddings": False}
    if "moe" in family:
        config |= {"num_experts": 6, **EXPERTS}
    values = {key: value for key, value in config.items() if key != "model_type"}
    hf_config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family](**values)
    (name,) = [each for each in dir(modeling) if each.endswith("TextModel") and not each.startswith("_")]
    with torch.device("meta"):
        body = getattr(modeling, name)(hf_config)
    head = 1000 * 96
    assert model_from_config(config, name=family).num_parameters == sum(t.numel() for t in body.parameters()) + head


@pytest.mark.parametrize(
    "name", [name for name, entry in catalog.read("models.yaml").items() if "internvl" not in str(entry["config"])]
)
def test_every_catalogue_model_counts_like_its_class(name: str) -> None:
    entry = catalog.read("models.yaml")[name]
    config = dict(entry["config"])
    config = dict(config.get("text_config", config))
    config.pop("quantization_config", None)
    config["model_type"] = canonical_name(str(config["model_type"]))
    assert find_model(name, head="lm").num_parameters == count_with_transformers(config)


def test_scalar_head_counts_like_a_sequence_classifier() -> None:
    config = {"model_type": "llama", **PLAIN}
    hf_config = transformers.LlamaConfig(**PLAIN, num_labels=1)
    with torch.device("meta"):
        model = transformers.LlamaForSequenceClassification(hf_config)
    assert model_from_config(config, name="critic", head="scalar").num_parameters == sum(
        t.numel() for t in model.parameters()
    )
