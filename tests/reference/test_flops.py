"""FLOPs per token against torch's own counter over the real classes, within 1 %."""

from __future__ import annotations

import pytest

from hetrl.spec.hf_config import model_from_config
from hetrl.workload.flops import forward_flops

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPE = {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1408},
    "qwen2": {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1376},
    "qwen3": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1536},
    "gemma2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": 1024,
        "sliding_window": 4096,
    },
    "phi3": {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1408},
    "gpt_neox": {"num_attention_heads": 8, "intermediate_size": 2048},
    "starcoder2": {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2048},
    "deepseek_v3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1024,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "first_k_dense_replace": 3,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
TOKENS = 512


@pytest.mark.parametrize("family", CONFIGS)
def test_forward_flops_per_token(family: str) -> None:
    values = {**SHAPE, **CONFIGS[family]}
    hf_config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family](**values)
    hf_config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager")
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros((1, TOKENS), dtype=torch.long), use_cache=False)
    ours = model_from_config({"model_type": family, **values}, name=family)
    # The eager attention of the counted model computes the whole square; we count the causal half.
    square = sum(2 * TOKENS * TOKENS * layer.num_heads * (layer.head_dim + layer.v_head_dim) for layer in ours.layers)
    causal = sum(TOKENS * (TOKENS + 1) * layer.num_heads * (layer.head_dim + layer.v_head_dim) for layer in ours.layers)
    mine = forward_flops(ours, num_sequences=1, new_tokens=TOKENS)
    assert mine == pytest.approx(counter.get_total_flops() - square + causal, rel=0.01)
