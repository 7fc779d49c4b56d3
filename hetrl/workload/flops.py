"""The operators of a decoder layer and their floating-point operations.

Projections carry grouped-query attention (heads, key/value heads and head size independent of the hidden size),
gated or plain MLPs and active experts; causal attention counts half the square. A multiply-add is two FLOPs.
The backward pass is twice the forward pass; full recomputation adds one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetrl.spec.model import Layer, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A weight matrix that multiplies every token: ``[tokens, k] @ [k, n]``.

    Parameters
    ----------
    n, k
        Output and input features before tensor parallelism.
    split
        Dimension divided by the tensor degree: ``n`` (column parallel), ``k`` (row parallel) or ``none``.
    copies
        How many such matrices one layer applies per token group (experts: see `expert_tokens`).
    """

    name: str
    n: int
    k: int
    split: str

    def sharded(self, tensor_parallel: int) -> tuple[int, int]:
        """``(n, k)`` of one rank; replicated key/value heads are never split below one head by the rules."""
        if self.split == "n":
            return -(-self.n // tensor_parallel), self.k
        if self.split == "k":
            return self.n, -(-self.k // tensor_parallel)
        return self.n, self.k


def attention_projections(hidden_size: int, layer: Layer) -> tuple[Projection, ...]:
    """Projections of the attention block. Multi-head latent attention is folded into one equivalent input matrix."""
    output = Projection(name="attention_output", n=hidden_size, k=layer.num_heads * layer.v_head_dim, split="k")
    if layer.kv_is_latent:
        inputs = (layer.attention_matmul_parameters - output.n * output.k) // hidden_size
    else:
        inputs = layer.num_heads * layer.head_dim + layer.num_kv_heads * (layer.head_dim + layer.v_head_dim)
    return Projection(name="attention_input", n=inputs, k=hidden_size, split="n"), output


def dense_projections(hidden_size: int, layer: Layer) -> tuple[Projection, ...]:
    """Projections of the dense MLP and of shared experts; empty in a layer without either."""
    width = layer.intermediate_size + layer.shared_intermediate_size
    if width == 0:
        return ()
    return (
        Projection(name="mlp_up", n=width * (2 if layer.gated else 1), k=hidden_size, split="n"),
        Projection(name="mlp_down", n=hidden_size, k=width, split="k"),
    )


def expert_projections(hidden_size: int, layer: Layer) -> tuple[Projection, ...]:
    """Projections of one routed expert; empty in a dense layer."""
    if layer.num_experts == 0:
        return ()
    return (
        Projection(
            name="expert_up", n=layer.moe_intermediate_size * (2 if layer.gated else 1), k=hidden_size, split="n"
        ),
        Projection(name="expert_down", n=hidden_size, k=layer.moe_intermediate_size, split="k"),
    )


def touched_experts(layer: Layer, num_tokens: float) -> float:
    """Return the expected number of distinct experts that ``num_tokens`` tokens reach: ``E (1 - (1 - k/E)^tokens)``."""
    if layer.num_experts == 0:
        return 0.0
    return float(layer.num_experts * (1.0 - (1.0 - layer.experts_per_token / layer.num_experts) ** num_tokens))


def attention_flops(layer: Layer, *, num_sequences: float, new_tokens: float, cached_tokens: float = 0.0) -> float:
    """FLOPs of scores and weighted values (no projections), causal, for new tokens on top of a cache.

    Each new token sees the cache and, on average, half of the new tokens, at most its window.
    """
    seen = cached_tokens + (new_tokens + 1.0) / 2.0 if new_tokens > 1 else cached_tokens + new_tokens
    if layer.window is not None:
        seen = min(seen, float(layer.window))
    return 2.0 * num_sequences * new_tokens * seen * layer.num_heads * (layer.head_dim + layer.v_head_dim)


def layer_forward_flops(
    hidden_size: int, layer: Layer, *, num_sequences: float, new_tokens: float, cached_tokens: float = 0.0
) -> float:
    """FLOPs of one layer's forward pass over ``num_sequences`` sequences of ``new_tokens`` tokens."""
    tokens = num_sequences * new_tokens
    projections = attention_projections(hidden_size, layer) + dense_projections(hidden_size, layer)
    per_token = sum(projection.n * projection.k for projection in projections)
    per_token += layer.experts_per_token * sum(p.n * p.k for p in expert_projections(hidden_size, layer))
    per_token += layer.num_experts * hidden_size  # router
    return 2.0 * tokens * per_token + attention_flops(
        layer, num_sequences=num_sequences, new_tokens=new_tokens, cached_tokens=cached_tokens
    )


def head_flops(model: Model, num_tokens: float) -> float:
    """FLOPs of the output head (vocabulary logits, or the scalar head)."""
    width = model.vocab_size if model.head == "lm" else 1
    return 2.0 * num_tokens * model.hidden_size * width


def forward_flops(model: Model, *, num_sequences: float, new_tokens: float, cached_tokens: float = 0.0) -> float:
    """FLOPs of a forward pass of the whole model, head included (the embedding look-up has none)."""
    body = sum(
        layer_forward_flops(
            model.hidden_size, layer, num_sequences=num_sequences, new_tokens=new_tokens, cached_tokens=cached_tokens
        )
        for layer in model.layers
    )
    return body + head_flops(model, num_sequences * new_tokens)


def train_flops(model: Model, *, num_sequences: float, tokens: float, recompute: bool = False) -> float:
    """FLOPs of forward and backward (three forward passes, four with full recomputation)."""
    return (4.0 if recompute else 3.0) * forward_flops(model, num_sequences=num_sequences, new_tokens=tokens)


def lora_parameters(model: Model, rank: int) -> int:
    """Trainable parameters of rank-``rank`` adapters on all projections of all layers.

    Queries, keys and values, and gate and up, have an adapter each although they are one matrix product here.
    """
    separate = {"attention_input": 3, "mlp_up": 2, "expert_up": 2}
    total = 0
    for layer in model.layers:
        copies = {**separate, "attention_input": 1} if layer.kv_is_latent else separate
        if not layer.gated:
            copies = {**copies, "mlp_up": 1, "expert_up": 1}
        dense = attention_projections(model.hidden_size, layer) + dense_projections(model.hidden_size, layer)
        experts = expert_projections(model.hidden_size, layer)
        total += rank * sum(p.n + copies.get(p.name, 1) * p.k for p in dense)
        total += rank * layer.num_experts * sum(p.n + copies.get(p.name, 1) * p.k for p in experts)
    return total
