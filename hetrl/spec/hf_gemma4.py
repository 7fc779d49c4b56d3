"""Layers of Gemma 4: windowed and global layers have their own head sizes and key/value heads.

Global layers may use their keys as values; a layer may run a dense MLP and experts side by side.
"""

from __future__ import annotations

from dataclasses import replace

from hetrl.spec import hf_layers
from hetrl.spec.hf_families import Family
from hetrl.spec.hf_fields import Fields
from hetrl.spec.model import Layer


def gemma4_layers(fields: Fields, family: Family, num_layers: int) -> tuple[Layer, ...]:
    """Return all layers; variants with per-layer embeddings or shared caches are refused."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if fields.count(key, default=0, minimum=0):
            fields.reject(key, "unsupported architecture: per-layer inputs and shared caches", fields.get(key), "0")
    made: dict[int | None, Layer] = {}
    layers = []
    for index in range(num_layers):
        window = hf_layers.window(fields, family, index)
        if window not in made:
            made[window] = _layer(fields, family, window)
        layers.append(made[window])
    return tuple(layers)


def _layer(fields: Fields, family: Family, window: int | None) -> Layer:
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    shares_values = window is None and fields.flag("attention_k_eq_v")
    if window is None:
        head_dim = fields.count("global_head_dim")
        local_kv_heads = fields.count("num_key_value_heads")
        kv_heads = (
            fields.count("num_global_key_value_heads", default=local_kv_heads) if shares_values else local_kv_heads
        )
    else:
        head_dim, kv_heads = fields.count("head_dim"), fields.count("num_key_value_heads")
    if heads % kv_heads:
        fields.reject("num_key_value_heads", f"does not divide {heads} attention heads", kv_heads)
    key = kv_heads * head_dim
    bias = heads * head_dim + (1 if shares_values else 2) * key if fields.flag("attention_bias") else 0
    bias += hidden if fields.flag("attention_bias") else 0
    attention = hf_layers.Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        kv_elements_per_token=2 * key,  # keys are rotated and normalised after they were copied as values
        kv_is_latent=False,
        matmul_parameters=hidden * (2 * heads * head_dim + (1 if shares_values else 2) * key),
        other_parameters=2 * head_dim + bias,
    )
    mlp = hf_layers.dense_mlp(fields, family, fields.count("intermediate_size"))
    norms = 4 * hidden
    if fields.flag("enable_moe_block"):
        experts = hf_layers.expert_mlp(fields, family)
        scales = hidden + experts.num_experts  # router scales
        mlp = replace(
            experts,
            intermediate_size=mlp.intermediate_size,
            active_matmul_parameters=mlp.active_matmul_parameters + experts.active_matmul_parameters,
            num_parameters=mlp.num_parameters + experts.num_parameters + scales,
        )
        norms += 3 * hidden
    return hf_layers.join(attention, mlp, norms=norms, gated=True, window=window)
