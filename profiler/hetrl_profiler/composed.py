"""What the cost model composes for a measured phase: its time from operators alone, iterations and sequences.

These are the three amounts that a phase's calibration multiplies, computed with the model's own unit costs on exactly
the shape that was measured, the same way as `hetrl.cost` does for planned shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.collectives import all_reduce_seconds
from hetrl.cost.unit import PREFILL_CHUNK_TOKENS, UnitCosts
from hetrl.measure import Measurement
from hetrl.spec.devices import DeviceType
from hetrl.spec.model import Model
from hetrl.spec.topology import Link
from hetrl.workload.memory import train_state, train_state_bytes_per_parameter

Array = NDArray[np.float64]
PHASE_OF_KIND = {
    "generate": ("prefill", "generate"),
    "score": ("score",),
    "old_log_probs": ("score",),
    "forward_backward": ("train",),
    "optimizer_step": ("optimizer",),
    "all_reduce": ("reduce",),
    "load_weights": ("sync",),
    "weight_sync": ("sync",),
}
"""Kind of a measurement -> phases whose calibrations it tells about; their times add up."""
NEEDED = {
    "generate": ("num_sequences", "num_prompts", "num_prompt_tokens", "num_response_tokens", "num_iterations"),
    "score": ("num_sequences", "num_tokens", "micro_batch_size"),
    "old_log_probs": ("num_sequences", "num_tokens", "micro_batch_size"),
    "forward_backward": ("num_sequences", "num_tokens", "micro_batch_size"),
    "optimizer_step": (),
    "all_reduce": ("num_bytes", "num_ranks"),
    "load_weights": (),
    "weight_sync": (),
}
"""Amounts without which a kind says nothing."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A phase that was measured, with everything that its composed time depends on.

    Parameters
    ----------
    measurement
        What was measured; `NEEDED` amounts are there.
    device
        Device type.
    model
        Language model; None for communication.
    links
        Links that an all-reduce and a weight update use, if known.
    """

    measurement: Measurement
    device: DeviceType
    model: Model | None
    reduce_link: Link | None = None
    sync_links: tuple[Link, ...] = field(default=())

    @property
    def kind(self) -> str:
        """Kind of the measurement."""
        return self.measurement.kind

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases it tells about."""
        return PHASE_OF_KIND[self.kind]


def amounts_of(observation: Observation, costs: UnitCosts) -> Mapping[str, Array]:
    """Phase -> composed seconds, iterations and sequences, shape ``[3]``."""
    kind, amounts = observation.kind, observation.measurement.amounts
    if kind == "all_reduce":
        seconds = 0.0
        if observation.reduce_link is not None:
            seconds = all_reduce_seconds(amounts["num_bytes"], int(amounts["num_ranks"]), observation.reduce_link)
        return {"reduce": np.array([seconds, 1.0, 0.0])}
    model = observation.model
    if kind == "optimizer_step":
        total = _state_bytes(model, amounts.get("num_parameters", 0.0), costs)
        return {"optimizer": np.array([total / observation.device.memory_bytes_per_second, 1.0, 0.0])}
    assert model is not None
    if kind in ("load_weights", "weight_sync"):
        whole = model.num_parameters * costs.bytes_per_element
        seconds = sum(link.latency_seconds + whole / link.bytes_per_second for link in observation.sync_links)
        return {"sync": np.array([seconds, 1.0, 0.0])}
    if kind == "generate":
        return _generation(observation, model, costs)
    sequences, micro_batch = amounts["num_sequences"], int(amounts["micro_batch_size"])
    forward = costs.stage_forward_seconds(
        observation.device, model, 1, 0, model.num_layers, micro_batch, amounts["num_tokens"] / sequences
    )
    passes = 3.0 if kind == "forward_backward" else 1.0
    iterations = sequences / micro_batch
    return {observation.phases[0]: np.array([passes * forward * iterations, iterations, sequences])}


def _state_bytes(model: Model | None, num_parameters: float, costs: UnitCosts) -> float:
    """Weights, gradients and optimizer states of a model, or of so many parameters without one."""
    if model is None:
        each = train_state_bytes_per_parameter(costs.precision)
        return num_parameters * (each.weights + each.gradients + each.optimizer)
    state = train_state(
        model, costs.precision, first_layer=0, num_layers=model.num_layers, tensor_parallel=1, num_replicas=1,
        sharding="none",
    )  # fmt: skip
    return state.weights + state.gradients + state.optimizer


def predicted_seconds(observation: Observation, costs: UnitCosts) -> float:
    """Return what the cost model says the observed phase takes."""
    return sum(
        costs.model.calibration(observation.device.name, phase).seconds(*amounts.tolist())
        for phase, amounts in amounts_of(observation, costs).items()
    )


def _generation(observation: Observation, model: Model, costs: UnitCosts) -> Mapping[str, Array]:
    """Prefill and decoding; the engine's iterations are taken as they were, with their mean number of sequences."""
    amounts, device = observation.measurement.amounts, observation.device
    prompts, sequences = int(amounts["num_prompts"]), amounts["num_sequences"]
    prompt_tokens = max(1, round(amounts["num_prompt_tokens"] / prompts))
    per_chunk = min(prompts, max(1, PREFILL_CHUNK_TOKENS // prompt_tokens))
    chunk = costs.stage_forward_seconds(
        device, model, 1, 0, model.num_layers, per_chunk, prompt_tokens, all_logits=False
    )
    num_chunks = prompts / per_chunk
    tokens, iterations = amounts["num_response_tokens"], amounts["num_iterations"]
    active = np.array([max(1.0, tokens / iterations)])
    context = np.array([prompt_tokens + tokens / sequences / 2])
    seconds = costs.decode_head_seconds(device, model, 1, active)
    for run in costs.runs(model, 0, model.num_layers):
        seconds = seconds + run.count * costs.decode_layer_seconds(device, model, 1, run.kind, active, context)
    return {
        "prefill": num_chunks * np.array([chunk, 1.0, per_chunk]),
        "generate": np.array([iterations * seconds.item(), iterations, tokens]),
    }
