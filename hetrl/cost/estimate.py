"""What the evaluator says of a plan: seconds, memory, schedule, throughput, and where each figure comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetrl.cost.residency import MemoryUse
from hetrl.cost.schedule import Schedule
from hetrl.cost.transfers import Transfer
from hetrl.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEstimate:
    """Seconds of one task per step.

    Parameters
    ----------
    seconds
        All of it: compute, communication and switch.
    compute_seconds, communication_seconds, switch_seconds
        The parts. Tensor and pipeline parallel communication is part of compute, as it cannot be told apart in a run.
    replica_seconds
        Busy time of every replica.
    details
        Further figures by name, e.g. ``concurrency``, ``optimizer_seconds``.
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    switch_seconds: float
    replica_seconds: tuple[float, ...]
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The evaluator's answer for one plan.

    Parameters
    ----------
    step_seconds
        Time of one synchronous step, or the period of an asynchronous one; ``inf`` if infeasible.
    problems
        Every violated limit; empty for a feasible plan.
    provenance
        Figure -> ``measured``, ``fitted`` or ``datasheet``.
    idle_share
        device id -> fraction of the step in which it does nothing.
    """

    step_seconds: float
    tasks: Mapping[str, TaskEstimate]
    transfers: tuple[Transfer, ...]
    schedule: Schedule
    memory: MemoryUse
    problems: tuple[Problem, ...]
    tokens_per_second: float
    samples_per_second: float
    usd_per_step: float | None
    usd_per_million_tokens: float | None
    model_flops_utilisation: float
    idle_share: Mapping[int, float]
    provenance: Mapping[str, str]

    @property
    def feasible(self) -> bool:
        """Whether no limit is violated."""
        return not self.problems

    def to_json(self, node_names: Sequence[str]) -> dict[str, Any]:
        """Return the prediction as plan.json holds it; only for feasible plans (no infinities)."""
        return {
            "step_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
            "samples_per_second": self.samples_per_second,
            "usd_per_step": self.usd_per_step,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "model_flops_utilisation": self.model_flops_utilisation,
            "tasks": {name: _task_json(task) for name, task in self.tasks.items()},
            "transfers": [
                {
                    "kind": each.kind,
                    "source": each.source,
                    "target": each.target,
                    "bytes": each.num_bytes,
                    "seconds": each.seconds,
                }
                for each in self.transfers
            ],
            "schedule": {
                name: {"start_seconds": self.schedule.start[name], "end_seconds": self.schedule.end[name]}
                for name in self.schedule.start
            },
            "critical_path": list(self.schedule.critical_path),
            "memory": {
                "devices": {
                    str(device): {
                        "limit_bytes": round(self.memory.limits[device]),
                        "intervals": {
                            interval: {term: round(num_bytes) for term, num_bytes in terms.items()}
                            for interval, terms in intervals.items()
                        },
                    }
                    for device, intervals in sorted(self.memory.devices.items())
                },
                "hosts": {
                    node_names[node]: {
                        "used_bytes": round(used),
                        "limit_bytes": round(self.memory.host_limits[node]),
                    }
                    for node, used in sorted(self.memory.hosts.items())
                },
                "kv_tokens": {task: list(tokens) for task, tokens in self.memory.kv_tokens.items()},
            },
            "idle_share": {str(device): share for device, share in sorted(self.idle_share.items())},
        }


def _task_json(task: TaskEstimate) -> dict[str, Any]:
    return {
        "seconds": task.seconds,
        "compute_seconds": task.compute_seconds,
        "communication_seconds": task.communication_seconds,
        "switch_seconds": task.switch_seconds,
        "replica_seconds": list(task.replica_seconds),
        **task.details,
    }
