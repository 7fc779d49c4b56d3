"""Seconds of the stages of one replica, and of the sends between them: shared by training, scoring and prefill."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from hetrl.cost.collectives import all_reduce_seconds, send_seconds, slowest_link
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Replica, Stage
from hetrl.spec.devices import DeviceType
from hetrl.spec.model import Model
from hetrl.spec.topology import Link, Topology
from hetrl.workload.messages import activation_bytes

ALL_REDUCES_PER_LAYER = 2
"""Tensor parallel: one after attention and one after the MLP, in each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A stage with its position in the model and its slowest device type and link."""

    stage: Stage
    first_layer: int
    device_type: DeviceType
    link: Link | None


ReplicaClass = Hashable
"""What a replica's seconds depend on: equal replicas take equal time."""


def replica_class(topology: Topology, replica: Replica) -> ReplicaClass:
    """Key under which equal replicas of one task plan are evaluated once: prompts, stages, their types and links."""
    stages = tuple(
        (placed.stage.num_layers, placed.stage.tensor_parallel, placed.device_type.name, placed.link)
        for placed in _placed_stages(topology, replica)
    )
    sends = tuple(
        topology.link(source.devices[-1], target.devices[0])
        for source, target in zip(replica.stages, replica.stages[1:], strict=False)
    )
    return replica.num_prompts, stages, sends


def placed_stages(topology: Topology, replica: Replica) -> tuple[PlacedStage, ...]:
    """Resolve each stage's layers, device type and tensor-parallel link."""
    return tuple(_placed_stages(topology, replica))


def _placed_stages(topology: Topology, replica: Replica) -> Iterator[PlacedStage]:
    first_layer = 0
    for stage in replica.stages:
        link = slowest_link(topology, stage.devices) if len(stage.devices) > 1 else None
        yield PlacedStage(
            stage=stage, first_layer=first_layer, device_type=topology.devices[stage.devices[0]].type, link=link
        )
        first_layer += stage.num_layers


def tensor_parallel_seconds(stage: PlacedStage, num_bytes: float, *, num_passes: int) -> float:
    """Seconds of all tensor-parallel all-reduces of a stage for ``num_passes`` passes over its layers."""
    if stage.link is None:
        return 0.0
    each = all_reduce_seconds(num_bytes, stage.stage.tensor_parallel, stage.link)
    return num_passes * ALL_REDUCES_PER_LAYER * stage.stage.num_layers * each


def stage_sends_seconds(topology: Topology, replica: Replica, num_bytes: float) -> tuple[float, ...]:
    """Seconds of sending a micro-batch's hidden states from each stage to the next."""
    return tuple(
        send_seconds(num_bytes, topology.link(source.devices[-1], target.devices[0]))
        for source, target in zip(replica.stages, replica.stages[1:], strict=False)
    )


def forward_seconds(
    costs: UnitCosts,
    stages: tuple[PlacedStage, ...],
    model: Model,
    *,
    num_sequences: int,
    tokens: float,
    all_logits: bool = True,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute and tensor-parallel seconds of each stage's forward pass over one full micro-batch."""
    hidden = activation_bytes(
        model, num_sequences=num_sequences, tokens=tokens, bytes_per_element=costs.bytes_per_element
    )
    compute = tuple(
        costs.stage_forward_seconds(
            placed.device_type,
            model,
            placed.stage.tensor_parallel,
            placed.first_layer,
            placed.stage.num_layers,
            num_sequences,
            tokens,
            all_logits=all_logits,
        )
        for placed in stages
    )
    communication = tuple(tensor_parallel_seconds(placed, hidden, num_passes=1) for placed in stages)
    return compute, communication
