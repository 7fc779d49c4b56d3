"""From a plan's devices to places in a Ray cluster.

Every plan node that holds tasklets becomes one bundle of one placement group, ``STRICT_SPREAD``: each bundle lands on
a Ray node of its own, and the bundle's number leads back to the plan's node whatever order Ray chose. A Ray node
offers devices as the custom resource ``hetrl_device:<type>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetrl.errors import Problem, did_you_mean
from hetrl.plan.plan import Plan
from hetrl.spec.topology import Topology
from hetrl.spec.workflow import Workflow

RESOURCE_PREFIX = "hetrl_device:"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeed:
    """Devices the plan uses on one of its nodes.

    Parameters
    ----------
    node
        Index of the node in the topology.
    id, device_type
        Its name, and the type of its devices.
    devices
        Device ids used, ascending.
    """

    node: int
    id: str
    device_type: str
    devices: tuple[int, ...]

    @property
    def bundle(self) -> dict[str, float]:
        """What its placement-group bundle asks for."""
        return {RESOURCE_PREFIX + self.device_type: len(self.devices)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One replica of one task, and the place of its worker.

    Parameters
    ----------
    task, kind, role
        The workflow's task.
    replica
        Number of the replica; also its rank among the task's replicas.
    num_prompts
        The plan's share of this replica.
    device, device_type
        The plan's device.
    bundle
        Number of the placement-group bundle.
    """

    task: str
    kind: str
    role: str
    replica: int
    num_prompts: int
    device: int
    device_type: str
    bundle: int

    @property
    def name(self) -> str:
        """E.g. ``actor_generate[1] on cpu-slow (device 1)``."""
        return f"{self.task}[{self.replica}] on {self.device_type} (device {self.device})"


def node_needs(plan: Plan, topology: Topology) -> tuple[NodeNeed, ...]:
    """Devices used per node, in node order."""
    used: dict[int, set[int]] = {}
    for task in plan.tasks:
        for device in task.devices:
            used.setdefault(topology.devices[device].node, set()).add(device)
    return tuple(
        NodeNeed(
            node=node,
            id=topology.nodes[node].id,
            device_type=topology.nodes[node].device_type.name,
            devices=tuple(sorted(used[node])),
        )
        for node in sorted(used)
    )


def slots(plan: Plan, workflow: Workflow, topology: Topology) -> tuple[Slot, ...]:
    """All workers of a plan whose replicas have one device each, task by task in workflow order."""
    bundles = {need.node: number for number, need in enumerate(node_needs(plan, topology))}
    found = []
    for task in workflow.tasks:
        for number, replica in enumerate(plan.task(task.name).replicas):
            (device,) = replica.devices
            found.append(
                Slot(
                    task=task.name,
                    kind=task.kind,
                    role=task.role,
                    replica=number,
                    num_prompts=replica.num_prompts,
                    device=device,
                    device_type=topology.devices[device].type.name,
                    bundle=bundles[topology.devices[device].node],
                )
            )
    return tuple(found)


def placement_problems(needs: Sequence[NodeNeed], offers: Sequence[Mapping[str, int]]) -> list[Problem]:
    """Say why not every needed node finds a Ray node of its own; Ray itself would wait for ever.

    Parameters
    ----------
    offers
        One mapping per Ray node: device type -> number of devices.

    Returns
    -------
    list
        One problem per device type that Ray does not have, or not enough of; it says what Ray offers.
    """
    problems = []
    valid = _described(offers)
    known = sorted({name for offer in offers for name in offer})
    for device_type in dict.fromkeys(need.device_type for need in needs):
        wanted = sorted((len(need.devices) for need in needs if need.device_type == device_type), reverse=True)
        offered = sorted((offer[device_type] for offer in offers if offer.get(device_type)), reverse=True)
        if not offered:
            hint = did_you_mean(device_type, known)
            message = f"Ray has no device of type {device_type}" + (f"; {hint}" if hint else "")
        elif sum(wanted) > sum(offered):
            message = f"Ray has {sum(offered)} devices of type {device_type}, the plan uses {sum(wanted)}"
        elif len(wanted) > len(offered) or any(need > offer for need, offer in zip(wanted, offered, strict=False)):
            message = (
                f"{device_type}: the plan uses nodes of {_counts(wanted)} devices, Ray has nodes of {_counts(offered)}"
            )
        else:
            continue
        nodes = [need.id for need in needs if need.device_type == device_type]
        problems.append(
            Problem(
                path=f"nodes {', '.join(nodes)}", message=message, valid=f"what Ray offers: {valid}", rule="DEVICES"
            )
        )
    return problems


def _counts(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _described(offers: Sequence[Mapping[str, int]]) -> str:
    total: dict[str, int] = {}
    for offer in offers:
        for name, count in offer.items():
            total[name] = total.get(name, 0) + count
    return ", ".join(f"{count} {name}" for name, count in sorted(total.items())) or "no devices"
