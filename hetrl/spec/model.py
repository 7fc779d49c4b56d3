"""A language model as the planner sees it: shapes and counts, nothing of its code.

Parameter counts follow the tensors of the Hugging Face implementation of each family, so that they equal the
published counts exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from hetrl.spec.devices import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer.

    Parameters
    ----------
    num_heads, num_kv_heads
        Query and key/value heads.
    head_dim, v_head_dim
        Size of a query/key head and of a value head.
    intermediate_size
        Width of the dense MLP, 0 in a pure MoE layer.
    gated
        Whether the MLP has a gate matrix (three matrices instead of two).
    num_experts, experts_per_token, moe_intermediate_size, shared_intermediate_size
        Mixture of experts; all 0 in a dense layer.
    window
        Sliding attention window in tokens, None for full attention.
    kv_elements_per_token
        Cached elements per token, before tensor parallelism: ``2 kv_heads head_dim``, or the latent size for MLA.
    kv_is_latent
        MLA: the latent cache is replicated on every tensor rank.
    num_parameters
        All parameters of the layer.
    attention_matmul_parameters
        Parameters of the attention projections that multiply every token.
    mlp_matmul_parameters
        MLP parameters that multiply one token (active experts, router and shared experts included).
    expert_parameters
        Parameters of one routed expert, 0 in a dense layer.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    intermediate_size: int
    gated: bool = True
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    window: int | None = None
    kv_elements_per_token: int
    kv_is_latent: bool = False
    num_parameters: int
    attention_matmul_parameters: int
    mlp_matmul_parameters: int
    expert_parameters: int = 0

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches."""
        return self.num_parameters - (self.num_experts - self.experts_per_token) * self.expert_parameters


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only language model, or such a body with a scalar head.

    Parameters
    ----------
    name
        The name the user gave, e.g. a hub id.
    architecture
        ``model_type`` of the config.
    hidden_size, vocab_size, max_position
        As in the config.
    layers
        One entry per decoder layer.
    tied_embeddings
        The output head shares the embedding matrix.
    embedding_parameters, head_parameters, final_norm_parameters
        Parameters outside the layers; ``head_parameters`` is 0 when tied, ``hidden_size`` (+bias) for a scalar head.
    head
        ``lm`` or ``scalar`` (reward models, critics).
    weight_dtype
        Dtype of the weights during training and scoring.
    quantization
        Name of the checkpoint's quantisation, e.g. ``fp8``; empty for none.
    quantization_block
        Block length of block-quantised weights, 0 for none.
    source
        Where the figures come from.
    """

    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    max_position: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool
    embedding_parameters: int
    head_parameters: int
    final_norm_parameters: int
    head: str = "lm"
    weight_dtype: str = "bf16"
    quantization: str = ""
    quantization_block: int = 0
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @cached_property
    def num_parameters(self) -> int:
        """All parameters, tied ones once."""
        outside = self.embedding_parameters + self.head_parameters + self.final_norm_parameters
        return outside + sum(layer.num_parameters for layer in self.layers)

    @cached_property
    def num_active_parameters(self) -> int:
        """Parameters one token touches (equal to `num_parameters` for dense models)."""
        outside = self.embedding_parameters + self.head_parameters + self.final_norm_parameters
        return outside + sum(layer.active_parameters for layer in self.layers)

    @cached_property
    def kv_bytes_per_token_bf16(self) -> int:
        """Cached bytes per token over all layers at two bytes per element, without windows and tensor parallelism."""
        return sum(layer.kv_elements_per_token for layer in self.layers) * 2

    @cached_property
    def parameters_before(self) -> tuple[int, ...]:
        """Parameters of all layers before layer i, for i = 0..num_layers."""
        return tuple(accumulate((layer.num_parameters for layer in self.layers), initial=0))

    @cached_property
    def widest_layer(self) -> Layer:
        """The layer with the widest MLP for one token."""
        return max(
            self.layers, key=lambda each: each.intermediate_size + each.experts_per_token * each.moe_intermediate_size
        )

    @cached_property
    def layer_kinds(self) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
        """Distinct layers, and for every layer the index of its kind."""
        kinds = tuple(dict.fromkeys(self.layers))
        number = {layer: index for index, layer in enumerate(kinds)}
        return kinds, tuple(number[layer] for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in `weight_dtype`."""
        return self.num_parameters * DTYPE_BYTES[self.weight_dtype]

    @cached_property
    def num_heads(self) -> int:
        """Query heads common to all layers (their greatest common divisor where layers differ)."""
        import math

        return math.gcd(*(layer.num_heads for layer in self.layers))

    @cached_property
    def kv_head_counts(self) -> tuple[int, ...]:
        """Distinct numbers of key/value heads over the layers; MLA layers (latent cache) excluded."""
        return tuple(sorted({layer.num_kv_heads for layer in self.layers if not layer.kv_is_latent}))
