"""What distinguishes the model families of Hugging Face transformers, as data.

A `Family` says which tensors a decoder layer has beyond its plain projections. Each entry was checked by building the
class on meta tensors with transformers and counting (tests/reference/test_parameter_counts.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

CONFIG = "config"  # the flag is read from the config


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Traits of one ``model_type``.

    Parameters
    ----------
    attention
        ``gqa`` or ``mla``.
    qkv_bias, output_bias
        True, False or the name of the config key that decides.
    mlp_bias
        The same for the MLP.
    qk_norm
        ``head`` (two vectors of head_dim), ``full`` (over all heads), a config key that switches ``head`` on, or empty.
    norms_per_layer
        Normalisations of hidden size in a layer.
    norm_bias
        The normalisations have a bias as well as a weight (LayerNorm).
    norm_weight
        False where the normalisation has no parameters (OLMo 1).
    gated
        The MLP has a gate matrix.
    experts
        Expert layout: empty (dense), ``mixtral``, ``qwen``, ``deepseek``, ``gpt_oss``, ``olmoe``,
        ``ernie``, ``llama4`` or ``gemma4``.
    routing_bias
        The router has one correction term per expert (a buffer in transformers, but part of the checkpoint).
    sinks
        One attention-sink scalar per head.
    window_period
        0: no window; 1: every layer; n: every n-th layer is full, the others are windowed.
        Only read where the config has no ``layer_types``.
    learned_positions
        Config key with the length of a learned position embedding, plus its offset; empty for rotary positions.
    head_bias
        The output head has a bias: True, False or a config key.
    tied
        Class default of ``tie_word_embeddings``.
    defaults
        Further class defaults for keys that shipped configs omit.
    """

    attention: str = "gqa"
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: str = ""
    norms_per_layer: int = 2
    norm_bias: bool = False
    norm_weight: bool = True
    gated: bool = True
    experts: str = ""
    routing_bias: bool = False
    sinks: bool = False
    window_period: int = 0
    learned_positions: str = ""
    position_offset: int = 0
    embedding_norm: bool = False
    head_bias: bool | str = False
    tied: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)


_GEMMA3_DEFAULTS = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias="mlp_bias",
            defaults={"vocab_size": 32000, "max_position_embeddings": 2048},
        ),
        "mistral": Family(
            window_period=1, defaults={"vocab_size": 32000, "num_key_value_heads": 8, "max_position_embeddings": 131072}
        ),
        "ministral3": Family(defaults={"vocab_size": 131072, "head_dim": 128, "num_key_value_heads": 8}),
        "mixtral": Family(
            experts="mixtral",
            window_period=1,
            defaults={
                "vocab_size": 32000,
                "num_key_value_heads": 8,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 131072,
            },
        ),
        "qwen2": Family(qkv_bias=True, defaults={"vocab_size": 151936, "max_position_embeddings": 32768}),
        "qwen2_moe": Family(
            qkv_bias="qkv_bias",
            experts="qwen",
            defaults={
                "vocab_size": 151936,
                "qkv_bias": True,
                "decoder_sparse_step": 1,
                "max_position_embeddings": 32768,
            },
        ),
        "qwen3": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            defaults={"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 32768},
        ),
        "qwen3_moe": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            experts="qwen",
            defaults={"vocab_size": 151936, "decoder_sparse_step": 1, "max_position_embeddings": 32768},
        ),
        "qwen2_vl_text": Family(qkv_bias=True, defaults={"vocab_size": 152064, "max_position_embeddings": 32768}),
        "qwen2_5_vl_text": Family(qkv_bias=True, defaults={"vocab_size": 152064, "max_position_embeddings": 32768}),
        "qwen3_vl_text": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            defaults={"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 128000},
        ),
        "qwen3_vl_moe_text": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            experts="qwen",
            defaults={"vocab_size": 151936, "decoder_sparse_step": 1, "max_position_embeddings": 128000},
        ),
        "gemma": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            tied=True,
            defaults={"vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192},
        ),
        "gemma2": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            norms_per_layer=4,
            window_period=2,
            tied=True,
            defaults={"vocab_size": 256000, "head_dim": 256, "sliding_window": 4096, "max_position_embeddings": 8192},
        ),
        "gemma3_text": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            norms_per_layer=4,
            window_period=6,
            tied=True,
            defaults=_GEMMA3_DEFAULTS,
        ),
        "phi": Family(
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            norms_per_layer=1,
            norm_bias=True,
            gated=False,
            head_bias=True,
            defaults={"vocab_size": 51200, "max_position_embeddings": 2048},
        ),
        "phi3": Family(window_period=1, defaults={"vocab_size": 32064, "max_position_embeddings": 4096}),
        "phimoe": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            norm_bias=True,
            experts="mixtral",
            head_bias="lm_head_bias",
            defaults={"vocab_size": 32064},
        ),
        "gpt_oss": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            experts="gpt_oss",
            sinks=True,
            window_period=2,
            defaults={
                "vocab_size": 201088,
                "head_dim": 64,
                "attention_bias": True,
                "sliding_window": 128,
                "max_position_embeddings": 131072,
            },
        ),
        "deepseek_v2": Family(
            attention="mla",
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            experts="deepseek",
            defaults={"vocab_size": 102400},
        ),
        "deepseek_v3": Family(
            attention="mla",
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            experts="deepseek",
            routing_bias=True,
            defaults={"vocab_size": 129280, "max_position_embeddings": 4096},
        ),
        "glm4": Family(
            qkv_bias="attention_bias",
            norms_per_layer=4,
            defaults={
                "vocab_size": 151552,
                "head_dim": 128,
                "attention_bias": False,
                "max_position_embeddings": 131072,
            },
        ),
        "glm": Family(
            qkv_bias="attention_bias",
            defaults={
                "vocab_size": 151552,
                "head_dim": 128,
                "attention_bias": False,
                "max_position_embeddings": 131072,
            },
        ),
        "glm4_moe": Family(
            qkv_bias="attention_bias",
            qk_norm="use_qk_norm",
            experts="deepseek",
            routing_bias=True,
            defaults={"vocab_size": 151552, "max_position_embeddings": 131072},
        ),
        "gpt2": Family(
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            norm_bias=True,
            gated=False,
            learned_positions="n_positions",
            tied=True,
            defaults={"vocab_size": 50257, "n_positions": 1024},
        ),
        "gpt_neox": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias=True,
            norm_bias=True,
            gated=False,
            defaults={"vocab_size": 50432, "attention_bias": True, "max_position_embeddings": 2048},
        ),
        "opt": Family(
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            norm_bias=True,
            gated=False,
            learned_positions="max_position_embeddings",
            position_offset=2,
            tied=True,
            defaults={"vocab_size": 50272, "max_position_embeddings": 2048},
        ),
        "bloom": Family(
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            norm_bias=True,
            gated=False,
            embedding_norm=True,
            tied=True,
            defaults={"vocab_size": 250880},
        ),
        "olmo": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            norm_weight=False,
            defaults={"vocab_size": 50304, "max_position_embeddings": 2048},
        ),
        "olmo2": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="full",
            defaults={"vocab_size": 50304, "max_position_embeddings": 2048},
        ),
        "olmo3": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="full",
            window_period=4,
            defaults={"vocab_size": 50304, "sliding_window": 4096, "max_position_embeddings": 2048},
        ),
        "olmoe": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="full",
            experts="olmoe",
            defaults={"vocab_size": 50304, "max_position_embeddings": 4096},
        ),
        "granite": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias="mlp_bias",
            defaults={"vocab_size": 32000, "max_position_embeddings": 2048},
        ),
        "granitemoe": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            experts="mixtral",
            defaults={"vocab_size": 32000, "max_position_embeddings": 2048},
        ),
        "cohere": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            norms_per_layer=1,
            tied=True,
            defaults={"vocab_size": 256000, "max_position_embeddings": 8192},
        ),
        "cohere2": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            norms_per_layer=1,
            window_period=4,
            tied=True,
            defaults={"vocab_size": 256000, "sliding_window": 4096, "max_position_embeddings": 8192},
        ),
        "starcoder2": Family(
            qkv_bias="use_bias",
            output_bias="use_bias",
            mlp_bias="use_bias",
            norm_bias=True,
            gated=False,
            window_period=1,
            tied=True,
            defaults={"vocab_size": 49152, "use_bias": True, "max_position_embeddings": 4096},
        ),
        "stablelm": Family(
            qkv_bias="use_qkv_bias", norm_bias=True, defaults={"vocab_size": 50304, "max_position_embeddings": 4096}
        ),
        "smollm3": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias="mlp_bias",
            tied=True,
            defaults={"vocab_size": 128256, "max_position_embeddings": 32768},
        ),
        "nemotron": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias="mlp_bias",
            norm_bias=True,
            gated=False,
            defaults={"vocab_size": 256000, "max_position_embeddings": 4096},
        ),
        "seed_oss": Family(
            qkv_bias="attention_bias",
            output_bias="attention_out_bias",
            mlp_bias="mlp_bias",
            defaults={"vocab_size": 155136, "head_dim": 128, "attention_bias": True},
        ),
        "exaone4": Family(
            qk_norm="head", window_period=4, defaults={"vocab_size": 102400, "max_position_embeddings": 2048}
        ),
        "ernie4_5_moe": Family(
            qkv_bias="use_bias",
            output_bias="use_bias",
            mlp_bias="use_bias",
            experts="ernie",
            routing_bias=True,
            tied=True,
            defaults={"vocab_size": 103424, "max_position_embeddings": 131072},
        ),
        "minimax_m2": Family(
            qk_norm="full",
            experts="mixtral",
            routing_bias=True,
            defaults={"vocab_size": 200064, "head_dim": 128, "max_position_embeddings": 196608},
        ),
        "dots1": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            experts="deepseek",
            routing_bias=True,
            defaults={"vocab_size": 152064, "max_position_embeddings": 2048},
        ),
        "hunyuan_v1_dense": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            defaults={"vocab_size": 290943, "max_position_embeddings": 2048},
        ),
        "gptj": Family(
            mlp_bias=True,
            norms_per_layer=1,
            norm_bias=True,
            gated=False,
            head_bias=True,
            defaults={"vocab_size": 50400, "n_positions": 2048},
        ),
        "arcee": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias="mlp_bias",
            gated=False,
            defaults={"vocab_size": 32000, "max_position_embeddings": 4096},
        ),
        "helium": Family(
            qkv_bias="attention_bias",
            mlp_bias="mlp_bias",
            defaults={"vocab_size": 48000, "head_dim": 128, "max_position_embeddings": 4096},
        ),
        "llama4_text": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            experts="llama4",
            window_period=4,
            defaults={
                "vocab_size": 202048,
                "head_dim": 128,
                "interleave_moe_layer_step": 1,
                "num_experts_per_tok": 1,
                "attention_chunk_size": 8192,
                "max_position_embeddings": 131072,
            },
        ),
        "gemma4_text": Family(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm="head",
            norms_per_layer=4,
            experts="gemma4",
            window_period=6,
            tied=True,
            defaults={
                "vocab_size": 262144,
                "head_dim": 256,
                "global_head_dim": 512,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "sliding_window": 512,
                "hidden_size_per_layer_input": 256,
                "max_position_embeddings": 131072,
            },
        ),
        "ernie4_5": Family(
            qkv_bias="use_bias",
            output_bias="use_bias",
            mlp_bias="use_bias",
            tied=True,
            defaults={"vocab_size": 103424, "head_dim": 128, "max_position_embeddings": 131072},
        ),
    }
)

# Other spellings of a supported family: remote-code names whose tensors are those of the family.
SAME_AS: Mapping[str, str] = MappingProxyType(
    {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3", "mistral3": "mistral", "qwen2_5_vl": "qwen2_5_vl_text", "qwen2_vl": "qwen2_vl_text",
     "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "gemma3": "gemma3_text",
     "gemma4": "gemma4_text", "gemma4_unified": "gemma4_text", "llama4": "llama4_text"}
)  # fmt: skip

# Outer types of multimodal configs: the language model sits in one of these keys.
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config")

# Features that change the layers in a way this catalogue does not describe.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "mamba": "state-space layers", "mamba2": "state-space layers", "jamba": "state-space layers", "falcon_mamba": "state-space layers",
        "qwen3_next": "linear-attention layers", "qwen3_5": "linear-attention layers", "qwen3_5_moe": "linear-attention layers",
        "lfm2": "convolution layers", "minimax": "linear-attention layers", "t5": "an encoder", "bart": "an encoder", "whisper": "an encoder",
        "bert": "an encoder", "gemma3n_text": "per-layer embeddings",
        "deepseek_v32": "sparse attention with an indexer",
    }
)  # fmt: skip
