"""Phases of a model that torch runs: scoring, forward and backward of a policy update, the optimizer step.

They do what the workers of a run do, on the same kind of batches: padded micro-batches, log-probabilities of all
tokens, a clipped policy loss with a KL term, AdamW over single tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.model import Model
from hetrl_profiler.device import TORCH_DTYPES, ProfiledDevice
from hetrl_profiler.points import Point
from hetrl_profiler.timing import Operation

MICRO_BATCHES = ((8, 48), (4, 32), (16, 48), (8, 128), (32, 48), (4, 256), (16, 128), (64, 48), (2, 1024), (1, 64))
GPU_MICRO_BATCHES = ((4, 1024), (1, 512), (8, 1024), (4, 2048), (16, 512), (2, 4096), (32, 256), (1, 2048), (8, 256))
"""Sequences and tokens per sequence of the measured micro-batches, the most useful ones first."""


OPTIMIZER_SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28)


class TorchPhases:
    """A model loaded for training and scoring.

    Parameters
    ----------
    folder
        Config and safetensors weights.
    labels
        Labels of every point, among them the model.
    """

    def __init__(self, folder: Path, model: Model, device: ProfiledDevice, labels: Mapping[str, str]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._device = device
        self._labels = dict(labels)
        self._max_tokens = model.max_position
        self._vocab = model.vocab_size
        loader: Any = AutoModelForCausalLM
        self._model = loader.from_pretrained(
            str(folder), dtype=getattr(torch, TORCH_DTYPES[device.dtype]), attn_implementation="sdpa",
            local_files_only=True, trust_remote_code=False, use_safetensors=True,
        ).to(device.torch_device)  # fmt: skip
        self._parameters = list(self._model.parameters())
        self._num_parameters = sum(each.numel() for each in self._parameters)
        self._gradients: Any = None

    def points(self) -> list[Point]:
        """Scoring and training on all micro-batches that the model's positions allow, and the optimizer step."""
        found = [
            self.point(kind, sequences, tokens, sequences)
            for sequences, tokens in (MICRO_BATCHES if self._device.kind == "cpu" else GPU_MICRO_BATCHES)
            if tokens <= self._max_tokens
            for kind in ("score", "forward_backward")
        ]
        return [*found[:2], self.point("optimizer_step", 0, 0, 0), *found[2:]]

    def point(self, kind: str, num_sequences: int, num_tokens: int, micro_batch_size: int) -> Point:
        """One phase: ``score``, ``forward_backward``, ``optimizer_step``, or ``train_step``, the latter two together.

        Parameters
        ----------
        num_sequences, num_tokens
            Sequences, and tokens of each; not for ``optimizer_step``.
        micro_batch_size
            Sequences that go through the model at once.
        """
        if kind == "optimizer_step":
            amounts = {"num_parameters": float(self._num_parameters)}
        else:
            amounts = {
                "num_sequences": float(num_sequences),
                "num_tokens": float(num_sequences * num_tokens),
                "micro_batch_size": float(micro_batch_size),
            }
        makers = {
            "score": lambda: self._score(num_sequences, num_tokens, micro_batch_size),
            "forward_backward": lambda: self._forward_backward(num_sequences, num_tokens, micro_batch_size),
            "optimizer_step": self._optimizer_step,
            "train_step": lambda: _one_after_the_other(
                self._forward_backward(num_sequences, num_tokens, micro_batch_size), self._optimizer_step()
            ),
        }
        return Point(kind=kind, amounts=amounts, prepare=makers[kind], labels=self._labels)

    def _batches(self, num_sequences: int, num_tokens: int, micro_batch_size: int) -> list[tuple[Any, Any]]:
        sizes = [min(micro_batch_size, num_sequences - at) for at in range(0, num_sequences, micro_batch_size)]
        draw = self._torch.randint
        where = self._device.torch_device
        return [tuple(draw(3, self._vocab, (size, num_tokens - 1), device=where) for _ in range(2)) for size in sizes]  # type: ignore[misc]

    def _score(self, *shape: int) -> Operation:
        self._model.eval()
        batches = self._batches(*shape)

        def score(_: int) -> None:
            with self._torch.inference_mode():
                for inputs, targets in batches:
                    self._log_probs(inputs, targets)

        return score

    def _forward_backward(self, *shape: int) -> Operation:
        torch = self._torch
        self._model.train()
        self._make_gradients()
        batches = self._batches(*shape)
        with torch.no_grad():
            old = [self._log_probs(*batch).clone() for batch in batches]
        advantages = [torch.randn(len(inputs), 1, device=inputs.device) for inputs, _ in batches]
        num_tokens = sum(each.numel() for each in old)

        def update(_: int) -> None:
            self._gradients.zero_()
            for (inputs, targets), before, advantage in zip(batches, old, advantages, strict=True):
                log_probs = self._log_probs(inputs, targets)
                ratio = torch.exp(log_probs - before)
                clipped = torch.clamp(ratio, 0.8, 1.2)
                policy = -torch.minimum(ratio * advantage, clipped * advantage)
                log_ratio = before - log_probs
                divergence = torch.exp(log_ratio) - log_ratio - 1
                (policy + 0.01 * divergence).sum().div(num_tokens).backward()

        return update

    def _log_probs(self, inputs: Any, targets: Any) -> Any:
        logits = self._model(input_ids=inputs, use_cache=False).logits.float()
        return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1)

    def _make_gradients(self) -> None:
        """Gradients are views of one flat buffer, which a run reduces over its replicas in one piece."""
        if self._gradients is not None:
            return
        first = self._parameters[0]
        self._gradients = self._torch.zeros(self._num_parameters, dtype=first.dtype, device=first.device)
        start = 0
        for each in self._parameters:
            each.grad = self._gradients[start : start + each.numel()].view_as(each)
            start += each.numel()

    def _optimizer_step(self) -> Operation:
        self._make_gradients()
        optimizer = self._torch.optim.AdamW(
            self._parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, foreach=False
        )

        def step(_: int) -> None:
            float(self._gradients.norm())
            optimizer.step()

        return step


def optimizer_points(device: ProfiledDevice, max_bytes: float) -> list[Point]:
    """AdamW steps over so many parameters in one piece, without a model: weights, gradients and two moments."""
    bytes_per_parameter = 4 * DTYPE_BYTES[device.dtype]
    return [
        Point(
            kind="optimizer_step",
            amounts={"num_parameters": float(number)},
            prepare=lambda number=number: _flat_step(device, number),  # type: ignore[misc]
            least_seconds=1.5 * number * bytes_per_parameter / device.max_bytes_per_second,  # all read, three written
        )
        for number in OPTIMIZER_SIZES
        if number * bytes_per_parameter <= max_bytes
    ]


def _flat_step(device: ProfiledDevice, num_parameters: int) -> Operation:
    import torch

    weights = torch.zeros(num_parameters, dtype=device.torch_dtype, device=device.torch_device, requires_grad=True)
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.AdamW([weights], lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)

    def step(_: int) -> None:
        float(weights.grad.norm())  # type: ignore[union-attr]
        optimizer.step()

    return step


def _one_after_the_other(first: Operation, second: Operation) -> Operation:
    def both(number: int) -> None:
        first(number)
        second(number)

    return both
