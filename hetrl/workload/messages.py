"""Bytes that travel: activations between stages and shards, gradients, weights, rollouts."""

from __future__ import annotations

from hetrl.spec.job import Batch
from hetrl.spec.model import Model

ROLLOUT_BYTES_PER_TOKEN = 8 + 4 + 4
"""Token id (int64), engine log-probability and mask or value (fp32) of every token that moves between groups."""


def activation_bytes(model: Model, *, num_sequences: float, tokens: float, bytes_per_element: int = 2) -> float:
    """Bytes of the hidden states of a micro-batch: one pipeline send, and one tensor-parallel all-reduce."""
    return num_sequences * tokens * model.hidden_size * bytes_per_element


def rollout_bytes(batch: Batch, *, sequences_per_prompt: int, num_prompts: int | None = None) -> float:
    """Bytes of the rollouts of a step, moved from the generating group to a consumer."""
    prompts = batch.num_prompts if num_prompts is None else num_prompts
    return prompts * sequences_per_prompt * batch.mean_sequence_tokens * ROLLOUT_BYTES_PER_TOKEN


def score_bytes(batch: Batch, *, sequences_per_prompt: int) -> float:
    """Bytes of per-token scores (log-probabilities, values or rewards, fp32) sent back to a trainer."""
    return batch.num_prompts * sequences_per_prompt * batch.mean_sequence_tokens * 4
