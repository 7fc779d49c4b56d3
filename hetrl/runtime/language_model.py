"""The torch side of a policy: loading, padding, log-probabilities of responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hetrl.runtime.sequences import SampledSequence

Item = TypeVar("Item")


def load_model(path: str, dtype: str) -> Any:
    """Load a causal language model from a local folder, without running any code found there."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    )


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Sequences of unequal length as one tensor; B sequences, T tokens of the longest.

    Position t of ``targets_BT`` is token t + 1, what the model predicts at t. Padding stands on the right, where
    causal attention keeps it from influencing any real token, so no attention mask is needed.
    """

    inputs_BT: torch.Tensor
    targets_BT: torch.Tensor
    is_response_BT: torch.Tensor

    def place(self, values: Sequence[NDArray[np.float32]]) -> torch.Tensor:
        """Lay per-response values, one array per sequence, out like ``targets_BT``; zero elsewhere."""
        placed_BT = torch.zeros(self.targets_BT.shape, dtype=torch.float32)
        placed_BT[self.is_response_BT] = torch.from_numpy(np.concatenate(values).astype(np.float32, copy=False))
        return placed_BT

    def collect(self, values_BT: torch.Tensor) -> list[NDArray[np.float32]]:
        """Inverse of :meth:`place`."""
        return [row[response].float().numpy() for row, response in zip(values_BT, self.is_response_BT, strict=True)]


def pad(sequences: Sequence[SampledSequence]) -> PaddedBatch:
    """Build one padded batch."""
    longest = max(sequence.num_tokens for sequence in sequences)
    tokens = torch.zeros((len(sequences), longest), dtype=torch.long)
    is_response = torch.zeros((len(sequences), longest), dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        num_prompt = len(sequence.prompt_tokens)
        tokens[row, :num_prompt] = torch.from_numpy(sequence.prompt_tokens)
        tokens[row, num_prompt : sequence.num_tokens] = torch.from_numpy(sequence.response_tokens)
        is_response[row, num_prompt : sequence.num_tokens] = True
    return PaddedBatch(inputs_BT=tokens[:, :-1], targets_BT=tokens[:, 1:], is_response_BT=is_response[:, 1:])


def log_probs_BT(model: Any, batch: PaddedBatch, temperature: float) -> torch.Tensor:
    """Log-probability of every target under the policy that samples at ``temperature``, shape (B, T)."""
    logits_BTV: torch.Tensor = model(input_ids=batch.inputs_BT, use_cache=False).logits.float() / temperature
    chosen_BT = logits_BTV.gather(-1, batch.targets_BT[..., None])[..., 0]
    return chosen_BT - logits_BTV.logsumexp(-1)


def micro_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Cut into consecutive micro-batches of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def response_log_probs(
    model: Any, sequences: Sequence[SampledSequence], temperature: float, micro_batch_size: int
) -> list[NDArray[np.float32]]:
    """Log-probabilities of each response's tokens, one array of shape (R,) per sequence; forward only."""
    found: list[NDArray[np.float32]] = []
    with torch.inference_mode():
        for part in micro_batches(sequences, micro_batch_size):
            batch = pad(part)
            found += batch.collect(log_probs_BT(model, batch, temperature))
    return found
