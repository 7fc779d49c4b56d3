"""Train worker: data-parallel GRPO on replicas with unequal shares, and the source of weight updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hetrl.runtime.buckets import Bucket
from hetrl.runtime.checkpoint import RunState, whole_folder, write_state
from hetrl.runtime.sequences import TrainSequence, split_by_shares, split_evenly
from hetrl.runtime.worker import Worker

if TYPE_CHECKING:
    import torch

OPTIMIZER_FILE = "optimizer.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What one update needs beside the sequences.

    Parameters
    ----------
    num_epochs, num_mini_batches
        Passes over the batch, and optimizer steps per pass.
    micro_batch_size
        Sequences per forward and backward.
    responses_per_prompt
        Sequences of one prompt; mini-batches are made of whole prompts.
    max_gradient_norm
        Gradients are scaled down to this norm.
    """

    num_epochs: int
    num_mini_batches: int
    micro_batch_size: int
    responses_per_prompt: int
    temperature: float
    clip_ratio: float
    kl_coefficient: float
    max_gradient_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSums:
    """Sums over one replica's response tokens, first epoch; the driver adds replicas and divides.

    ``max_log_prob_difference`` is the largest |engine - trainer| log-probability of a sampled token before the update,
    ``max_reference_difference`` the largest |trainer - reference|; 0 without a reference.
    """

    num_tokens: int
    loss: float
    kl: float
    num_clipped: int
    max_log_prob_difference: float
    max_reference_difference: float
    gradient_norm: float


class TrainWorker(Worker):
    """One data-parallel replica of the train task.

    Parameters
    ----------
    model_path
        Folder with config, safetensors weights and tokenizer: the start of training.
    dtype
        Torch's name of the dtype of weights, gradients and optimizer states.
    replica, num_replicas
        Rank and size of the data-parallel group.
    """

    def __init__(self, core_index: int, *, model_path: str, dtype: str, replica: int, num_replicas: int) -> None:
        super().__init__(core_index)
        self._model_path = model_path
        self._dtype = dtype
        self._replica = replica
        self._num_replicas = num_replicas
        self._store: Any = None
        self._weight_group: Any = None
        self._load()
        self.reset(learning_rate=0.0)

    def _load(self) -> None:
        """Load the model and give its gradients one flat buffer, so that one all-reduce moves them all."""
        import torch

        from hetrl.runtime.language_model import load_model

        self._model = load_model(self._model_path, self._dtype).train()
        self._parameters: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        self._gradients = torch.zeros(
            sum(each.numel() for each in self._parameters.values()), dtype=getattr(torch, self._dtype)
        )
        start = 0
        for parameter in self._parameters.values():
            parameter.grad = self._gradients[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def reset(self, learning_rate: float) -> None:
        """Go back to the initial weights with a fresh optimizer."""
        import torch

        self._copy_weights(self._model_path)
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, foreach=False
        )

    def _copy_weights(self, path: str) -> None:
        import torch

        from hetrl.runtime.language_model import load_model

        source = dict(load_model(path, self._dtype).named_parameters())
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(source[name])

    # --- groups ---

    def open_store(self, host: str) -> int:
        """Replica 0: open the rendezvous of both groups on ``host``; return its port."""
        from hetrl.runtime.groups import open_store

        self._store, port = open_store(host)
        return port

    def join_replicas(self, host: str, port: int) -> None:
        """Join the data-parallel group."""
        from hetrl.runtime.groups import join_replicas, join_store

        if self._store is None:
            self._store = join_store(host, port)
        join_replicas(self._store, self._replica, self._num_replicas)

    def open_weight_group(self, num_ranks: int) -> None:
        """Replica 0: open the weight-update group, of which the engines are the other ranks."""
        from hetrl.runtime.groups import open_weight_group

        self._weight_group = open_weight_group(self._store, 0, num_ranks)

    # --- weight update ---

    def buckets(self, max_bytes: int) -> list[Bucket]:
        """Return how the weights are packed for an update."""
        from hetrl.runtime.buckets import pack

        return pack(self._parameters.items(), max_bytes)

    def send_weights(self, buckets: Sequence[Bucket]) -> None:
        """Replica 0: broadcast the weights to the engines."""
        import torch

        from hetrl.runtime.groups import broadcast_from_trainer

        with self.phase("send_weights") as amounts:
            num_bytes = 0
            for bucket in buckets:
                buffer = torch.cat([self._parameters[name].detach().reshape(-1) for name in bucket.names])
                broadcast_from_trainer(self._weight_group, buffer)
                num_bytes += buffer.numel() * buffer.element_size()
            amounts["num_bytes"] = num_bytes

    # --- training ---

    def train(self, sequences: Sequence[TrainSequence], settings: TrainSettings) -> TrainSums:
        """Update the policy on this replica's share, together with the other replicas."""
        import torch
        import torch.distributed as dist

        num_prompts = len(sequences) // settings.responses_per_prompt
        batches = split_by_shares(
            sequences, split_evenly(num_prompts, settings.num_mini_batches), settings.responses_per_prompt
        )
        global_tokens = torch.tensor(
            [sum(len(each.sequence.response_tokens) for each in batch) for batch in batches], dtype=torch.float64
        )
        with self.phase("wait_to_start"):
            dist.all_reduce(global_tokens)
        old_log_probs = self._old_log_probs(sequences, settings)
        old_by_batch = split_by_shares(old_log_probs, [len(batch) for batch in batches])
        sums = np.zeros(4)
        gradient_norm = 0.0
        for epoch in range(settings.num_epochs):
            for batch, old, num_tokens in zip(batches, old_by_batch, global_tokens.tolist(), strict=True):
                batch_sums = self._accumulate(batch, old, num_tokens, settings)
                gradient_norm = self._reduce_and_step(settings.max_gradient_norm)
                if epoch == 0:
                    sums += batch_sums
        return TrainSums(
            num_tokens=int(sums[0]),
            loss=float(sums[1]),
            kl=float(sums[2]),
            num_clipped=int(sums[3]),
            max_log_prob_difference=_largest_difference(
                old_log_probs, [each.sequence.engine_log_probs for each in sequences]
            ),
            max_reference_difference=_largest_difference(
                old_log_probs, [each.reference_log_probs for each in sequences]
            ),
            gradient_norm=gradient_norm,
        )

    def _old_log_probs(self, sequences: Sequence[TrainSequence], settings: TrainSettings) -> list[NDArray[np.float32]]:
        from hetrl.runtime.language_model import response_log_probs

        with self.phase("old_log_probs") as amounts:
            old = response_log_probs(
                self._model, [each.sequence for each in sequences], settings.temperature, settings.micro_batch_size
            )
            amounts.update(_amounts(sequences, settings))
        return old

    def _accumulate(
        self,
        sequences: Sequence[TrainSequence],
        old_log_probs: Sequence[NDArray[np.float32]],
        global_num_tokens: float,
        settings: TrainSettings,
    ) -> NDArray[np.float64]:
        """Add this replica's part of a mini-batch's gradient; return sums (tokens, loss, kl, clipped)."""
        import torch

        from hetrl.runtime.algorithms.grpo import policy_loss
        from hetrl.runtime.language_model import log_probs_BT, micro_batches, pad

        sums = np.zeros(4)
        with self.phase("forward_backward") as amounts:
            self._gradients.zero_()
            pairs = list(zip(sequences, old_log_probs, strict=True))
            for part in micro_batches(pairs, settings.micro_batch_size):
                batch = pad([each.sequence for each, _ in part])
                references = [each.reference_log_probs for each, _ in part]
                terms = policy_loss(
                    log_probs_BT(self._model, batch, settings.temperature),
                    batch.place([old for _, old in part]),
                    batch.place([each for each in references if each is not None])
                    if references[0] is not None
                    else None,
                    torch.tensor([each.advantage for each, _ in part], dtype=torch.float32),
                    batch.is_response_BT,
                    clip_ratio=settings.clip_ratio,
                    kl_coefficient=settings.kl_coefficient,
                )
                (terms.loss / global_num_tokens).backward()  # type: ignore[no-untyped-call]
                sums += (int(batch.is_response_BT.sum()), float(terms.loss), float(terms.kl), int(terms.num_clipped))
            amounts.update(_amounts(sequences, settings))
        return sums

    def _reduce_and_step(self, max_gradient_norm: float) -> float:
        """Sum gradients over replicas, clip, step; return the norm before clipping."""
        import torch.distributed as dist

        with self.phase("wait_for_replicas"):
            dist.barrier()
        with self.phase("all_reduce") as amounts:
            dist.all_reduce(self._gradients)
            amounts.update(
                num_bytes=self._gradients.numel() * self._gradients.element_size(), num_ranks=self._num_replicas
            )
        with self.phase("optimizer_step") as amounts:
            norm = float(self._gradients.norm())
            if norm > max_gradient_norm:
                self._gradients.mul_(max_gradient_norm / norm)
            self._optimizer.step()
            amounts["num_parameters"] = self._gradients.numel()
        return norm

    # --- checkpoints ---

    def save(self, folder: str, state: RunState) -> None:
        """Replica 0: write a checkpoint, whole or not at all."""
        import torch
        from safetensors.torch import save_file
        from transformers import AutoTokenizer

        with whole_folder(Path(folder)) as unfinished:
            self._model.save_pretrained(unfinished)
            AutoTokenizer.from_pretrained(self._model_path, local_files_only=True).save_pretrained(unfinished)
            moments = {
                f"{moment}/{name}": torch.as_tensor(self._optimizer.state[parameter][moment]).contiguous()
                for name, parameter in self._parameters.items()
                for moment in _MOMENTS
                if parameter in self._optimizer.state
            }
            save_file(moments, unfinished / OPTIMIZER_FILE)
            write_state(unfinished, state)

    def restore(self, folder: str, learning_rate: float) -> None:
        """Load weights and optimizer states of a checkpoint."""
        from safetensors.torch import load_file

        moments = load_file(Path(folder) / OPTIMIZER_FILE)
        self.reset(learning_rate)
        self._copy_weights(folder)
        for name, parameter in self._parameters.items():
            if f"{_MOMENTS[0]}/{name}" in moments:
                self._optimizer.state[parameter] = {moment: moments[f"{moment}/{name}"] for moment in _MOMENTS}

    def close(self) -> None:
        """Leave the groups."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _amounts(sequences: Sequence[TrainSequence], settings: TrainSettings) -> dict[str, float]:
    return {
        "num_sequences": len(sequences),
        "num_tokens": sum(each.sequence.num_tokens for each in sequences),
        "micro_batch_size": settings.micro_batch_size,
    }


def _largest_difference(left: Sequence[NDArray[np.float32]], right: Sequence[NDArray[np.float32] | None]) -> float:
    pairs = zip(left, right, strict=True)
    return max((float(np.abs(a - b).max(initial=0.0)) for a, b in pairs if b is not None), default=0.0)
