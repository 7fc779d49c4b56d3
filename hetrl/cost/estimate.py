"""What the evaluator says of a plan: seconds, memory, schedule, throughput, and where each figure comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
