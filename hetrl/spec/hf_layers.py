"""Decoder layers from config fields: which matrices a layer has and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

from hetrl.spec.hf_families import Family
from hetrl.spec.hf_fields import Fields
from hetrl.spec.model import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one layer; ``other_parameters`` are biases, norms and sinks."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_elements_per_token: int
    kv_is_latent: bool
    matmul_parameters: int
    other_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Feed-forward part of one layer."""

    intermediate_size: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    expert_parameters: int = 0
    active_matmul_parameters: int
    num_parameters: int


def switched(fields: Fields, setting: bool | str) -> bool:
    """Return a family trait that is fixed or named by a config key."""
    return fields.flag(setting) if isinstance(setting, str) else setting


def head_counts(fields: Fields) -> tuple[int, int, int]:
    """Return query heads, key/value heads (as many as query heads if not given) and the head size."""
    heads = fields.count("num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = fields.count("num_key_value_heads", "num_kv_heads", default=heads)
    if heads % kv_heads:
        fields.reject("num_key_value_heads", f"does not divide {heads} attention heads", kv_heads)
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    if fields.get("head_dim") is None and hidden % heads:
        fields.reject("head_dim", f"missing, and hidden_size {hidden} is not a multiple of {heads} heads")
    return heads, kv_heads, fields.count("head_dim", default=max(hidden // heads, 1))


def gqa_attention(fields: Fields, family: Family) -> Attention:
    """Return multi-head or grouped-query attention."""
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    heads, kv_heads, head_dim = head_counts(fields)
    query, key = heads * head_dim, kv_heads * head_dim
    other = 0
    if switched(fields, family.qkv_bias):
        other += query + 2 * key
    if switched(fields, family.output_bias):
        other += hidden
    if family.qk_norm == "head" or (family.qk_norm not in ("", "full") and fields.flag(family.qk_norm)):
        other += 2 * head_dim
    elif family.qk_norm == "full":
        other += query + key
    if family.sinks:
        other += heads
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        kv_elements_per_token=2 * key,
        kv_is_latent=False,
        matmul_parameters=hidden * (2 * query + 2 * key),
        other_parameters=other,
    )


def mla_attention(fields: Fields, family: Family) -> Attention:
    """Return multi-head latent attention (arXiv 2405.04434): the cache is the latent plus the rotary key."""
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    latent = fields.count("kv_lora_rank")
    rope = fields.count("qk_rope_head_dim")
    nope = fields.count("qk_nope_head_dim")
    value = fields.count("v_head_dim")
    query = heads * (nope + rope)
    bias = switched(fields, family.qkv_bias)
    other = latent + (latent + rope if bias else 0) + (hidden if switched(fields, family.output_bias) else 0)
    if fields.get("q_lora_rank") is None:
        matmul = hidden * query
    else:
        rank = fields.count("q_lora_rank")
        matmul = hidden * rank + rank * query
        other += rank + (rank if bias else 0)
    matmul += hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=nope + rope,
        v_head_dim=value,
        kv_elements_per_token=latent + rope,
        kv_is_latent=True,
        matmul_parameters=matmul,
        other_parameters=other,
    )


def dense_mlp(fields: Fields, family: Family, width: int) -> Mlp:
    """Return a dense MLP of ``width``."""
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    matrices = 3 if family.gated else 2
    bias = ((matrices - 1) * width + hidden) if switched(fields, family.mlp_bias) else 0
    return Mlp(
        intermediate_size=width,
        active_matmul_parameters=matrices * hidden * width,
        num_parameters=matrices * hidden * width + bias,
    )


def expert_mlp(fields: Fields, family: Family) -> Mlp:
    """Return a mixture of experts with its router and shared experts."""
    hidden = fields.count("hidden_size")
    experts = fields.count("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    active = fields.count("num_experts_per_tok", "experts_per_token", "moe_k", "top_k_experts")
    if active > experts:
        fields.reject("num_experts_per_tok", f"larger than {experts} experts", active)
    own_width = family.experts not in ("mixtral", "gpt_oss", "olmoe", "llama4")
    width = fields.count("moe_intermediate_size" if own_width else "intermediate_size")
    expert = 3 * hidden * width
    router, shared, extra = hidden * experts, 0, experts if family.routing_bias else 0
    if family.experts == "gpt_oss":
        expert += 2 * width + hidden  # biases of gate, up and down
        extra = experts  # router bias
    elif family.experts == "qwen" and fields.given("shared_expert_intermediate_size"):
        shared = fields.count("shared_expert_intermediate_size", minimum=0)
        extra = hidden if shared else 0  # gate of the shared expert
    elif family.experts == "deepseek":
        shared = fields.count("n_shared_experts", default=0, minimum=0) * width
    elif family.experts == "ernie":
        shared = fields.count("moe_num_shared_experts", default=0, minimum=0) * width
    elif family.experts == "llama4":
        shared = width
    return Mlp(
        num_experts=experts,
        experts_per_token=active,
        moe_intermediate_size=width,
        shared_intermediate_size=shared,
        expert_parameters=expert,
        active_matmul_parameters=router + active * 3 * hidden * width + 3 * hidden * shared,
        num_parameters=router + extra + experts * expert + 3 * hidden * shared,
    )


def is_expert_layer(fields: Fields, family: Family, index: int) -> bool:
    """Whether layer ``index`` routes to experts."""
    if not family.experts:
        return False
    if family.experts == "qwen":
        step = fields.count("decoder_sparse_step", default=1)
        return index not in fields.listing("mlp_only_layers") and (index + 1) % step == 0
    if family.experts == "deepseek":
        step = fields.count("moe_layer_freq", default=1)
        return index >= fields.count("first_k_dense_replace", default=0, minimum=0) and index % step == 0
    if family.experts == "ernie":
        step = fields.count("moe_layer_interval", default=1)
        first = fields.count("moe_layer_start_index", default=0, minimum=0)
        last = fields.count("moe_layer_end_index", default=2**31, minimum=0)
        return (index + 1) % step == 0 and first <= index <= last
    if family.experts == "llama4":
        if fields.given("moe_layers"):
            return index in fields.listing("moe_layers")
        return (index + 1) % fields.count("interleave_moe_layer_step") == 0
    return True


def window(fields: Fields, family: Family, index: int) -> int | None:
    """Return the sliding window of layer ``index`` in tokens, None for full attention."""
    length = fields.get("sliding_window", "attention_chunk_size")
    if not length:
        return None
    kinds = fields.listing("layer_types")
    if index < len(kinds):
        windowed = kinds[index] in ("sliding_attention", "chunked_attention")
    elif fields.given("use_sliding_window"):
        windowed = fields.flag("use_sliding_window") and index >= fields.count(
            "max_window_layers", default=0, minimum=0
        )
    elif family.window_period > 1:
        windowed = (index + 1) % fields.count("sliding_window_pattern", default=family.window_period) != 0
    else:
        windowed = family.window_period == 1
    return fields.count("sliding_window", "attention_chunk_size") if windowed else None


def norm_parameters(fields: Fields, family: Family) -> int:
    """Return the parameters of one normalisation of hidden size."""
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    return hidden * ((1 if family.norm_weight else 0) + (1 if family.norm_bias else 0))


def join(attention: Attention, mlp: Mlp, *, norms: int, gated: bool, window: int | None) -> Layer:
    """Return the layer made of its parts; ``norms`` are the parameters of its normalisations."""
    return Layer(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_head_dim,
        intermediate_size=mlp.intermediate_size,
        gated=gated,
        num_experts=mlp.num_experts,
        experts_per_token=mlp.experts_per_token,
        moe_intermediate_size=mlp.moe_intermediate_size,
        shared_intermediate_size=mlp.shared_intermediate_size,
        window=window,
        kv_elements_per_token=attention.kv_elements_per_token,
        kv_is_latent=attention.kv_is_latent,
        num_parameters=attention.matmul_parameters + attention.other_parameters + mlp.num_parameters + norms,
        attention_matmul_parameters=attention.matmul_parameters,
        mlp_matmul_parameters=mlp.active_matmul_parameters,
        expert_parameters=mlp.expert_parameters,
    )
