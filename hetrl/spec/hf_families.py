"""What distinguishes the model families of Hugging Face transformers, as data (``catalog/hf_families.yaml``).

A `Family` says which tensors a decoder layer has beyond its plain projections. Each entry was checked by building the
class on meta tensors with transformers and counting (tests/reference/test_parameter_counts.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from hetrl import catalog


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


@cache
def families() -> Mapping[str, Family]:
    """Return every described family by its ``model_type``."""
    return MappingProxyType(
        {name: Family(**traits) for name, traits in catalog.read("hf_families.yaml")["families"].items()}
    )


def canonical_name(model_type: str) -> str:
    """Return the name of the family that a ``model_type`` has the tensors of."""
    return str(catalog.read("hf_families.yaml")["same_as"].get(model_type, model_type))


def refusal(model_type: str) -> str:
    """Return what a known but undescribed family has that others do not, '' if nothing is known."""
    return str(catalog.read("hf_families.yaml")["refused"].get(model_type, ""))


# Where a multimodal config keeps its language model.
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config")
