"""Memory of a plan in words: a verdict per device and phase, the dominant term, and changes that make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hetrl.cost.residency import MemoryUse, plan_memory
from hetrl.errors import Problem
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.spec.environment_rules import host_ram_problems
from hetrl.spec.job import Job
from hetrl.units import format_bytes
from hetrl.workload.setups import DOES_NOT_FIT, FITS, TIGHT, TIGHT_FRACTION

MOST_SHOWN = 16
"""Nodes or replicas in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Devices of one node with equal use in one phase. KV pools, which take what is left, count as ``reserved``."""

    devices: tuple[int, ...]
    node: str
    type: str
    phase: str
    needed_bytes: float
    reserved_bytes: float
    limit_bytes: float
    dominant_term: str
    dominant_bytes: float

    @property
    def verdict(self) -> str:
        """Fits, tight or does not fit; a KV pool fills what is left and makes nothing tight."""
        if self.needed_bytes + self.reserved_bytes > self.limit_bytes * (1 + 1e-9):
            return DOES_NOT_FIT
        return TIGHT if self.needed_bytes > TIGHT_FRACTION * self.limit_bytes else FITS


def rows(job: Job, use: MemoryUse) -> list[Row]:
    """Return one row per node, phase and distinct use."""
    grouped: dict[tuple[int, str, tuple[tuple[str, int], ...]], list[int]] = {}
    for device, intervals in use.devices.items():
        node = job.topology.devices[device].node
        for phase, terms in intervals.items():
            key = (node, phase, tuple(sorted((term, round(size)) for term, size in terms.items())))
            grouped.setdefault(key, []).append(device)
    made = []
    for (node, phase, _), devices in grouped.items():
        terms = dict(use.devices[devices[0]][phase])
        pools = {term: size for term, size in terms.items() if "kv" in term.casefold()}
        rest = {term: size for term, size in terms.items() if term not in pools}
        dominant = max(rest, key=lambda term: rest[term], default="")
        made.append(
            Row(
                devices=tuple(devices),
                node=job.topology.nodes[node].id,
                type=job.topology.nodes[node].device_type.name,
                phase=phase,
                needed_bytes=sum(rest.values()),
                reserved_bytes=sum(pools.values()),
                limit_bytes=use.limits[devices[0]],
                dominant_term=dominant,
                dominant_bytes=rest.get(dominant, 0.0),
            )
        )
    return made


def kv_problems(job: Job, use: MemoryUse) -> list[Problem]:
    """Return engines whose KV pool cannot hold one longest sequence."""
    needed = job.batch.max_sequence_tokens
    return [
        Problem(
            path=f"tasks.{task}.replicas[{number}]",
            message=f"the KV pool holds {tokens:,.0f} tokens, one longest sequence has {needed:,}",
            found=f"{tokens:,.0f} tokens",
            valid="more devices for this engine, offload of other tasks, or shorter responses",
            rule="KV_ROOM",
        )
        for task, pools in use.kv_tokens.items()
        for number, tokens in enumerate(pools)
        if tokens < needed
    ]


def memory_problems(job: Job, use: MemoryUse) -> list[Problem]:
    """Return every device, host and KV pool that does not fit."""
    problems = [
        Problem(
            path=f"devices {_ids(row.devices)}",
            message=f"{row.phase} needs {format_bytes(row.needed_bytes + row.reserved_bytes)} "
            f"of {format_bytes(row.limit_bytes)} on {row.type}",
            found=f"{row.dominant_term} {format_bytes(row.dominant_bytes)}",
            rule="DEVICE_MEMORY",
        )
        for row in rows(job, use)
        if row.verdict == DOES_NOT_FIT
    ]
    for node, needed in use.hosts.items():
        problems += host_ram_problems(
            needed,
            use.host_limits[node],
            node=job.topology.nodes[node].id,
            knob="fewer offloaded states on this node",
        )
    return problems + kv_problems(job, use)


def _ids(devices: tuple[int, ...]) -> str:
    """Device ids in ascending order, runs of three and more as ``4-7``."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def changes(job: Job, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield single changes of a plan that lower its memory, the cheapest kind first, with the changed plan."""

    def changed(task: TaskPlan) -> Plan:
        return Plan(groups=plan.groups, tasks=tuple(task if each.task == task.task else each for each in plan.tasks))

    def keeping(task: TaskPlan, **places: str) -> Plan:
        return changed(replace(task, residency=replace(task.residency, **places)))

    for task in plan.tasks:
        name, kind = task.task, job.workflow.task(task.task).kind
        if kind != "generate" and task.micro_batch_size > 1:
            yield f"{name}: micro-batch 1 (now {task.micro_batch_size})", changed(replace(task, micro_batch_size=1))
        if kind == "train" and not task.recompute:
            yield f"{name}: activation recomputation", changed(replace(task, recompute=True))
        if kind == "train" and len(task.replicas) > 1 and task.sharding != "fsdp":
            yield f"{name}: full sharding over the replicas", changed(replace(task, sharding="fsdp"))
        if task.residency.weights_when_idle == "resident":
            where = "dropped" if kind == "generate" else "host"
            yield f"{name}: weights {where} while idle", keeping(task, weights_when_idle=where)
        if kind == "train" and task.residency.optimizer_states == "device":
            for where in ("host_when_idle", "host"):
                words = where.replace("_", " ")
                yield f"{name}: optimizer states {words}", keeping(task, optimizer_states=where)


def smallest_change(job: Job, plan: Plan) -> str:
    """Return the first single change that makes a plan fit, '' if none does."""
    for text, changed in changes(job, plan):
        if not memory_problems(job, plan_memory(job, changed)):
            return text
    return ""


def devices_needed(job: Job, plan: Plan) -> list[str]:
    """Return, for every group that does not fit, about how many devices it would take.

    An estimate that spreads the fullest device's bytes evenly over more devices of its type; plan again to be sure.
    """
    made = rows(job, plan_memory(job, plan))
    lines = []
    for group in plan.groups:
        inside = [row for row in made if row.verdict == DOES_NOT_FIT and set(row.devices) <= set(group.devices)]
        if inside:
            worst = max(inside, key=lambda row: row.needed_bytes / row.limit_bytes)
            count = math.ceil(len(group.devices) * worst.needed_bytes / worst.limit_bytes)
            lines.append(
                f"{', '.join(group.tasks)}: about {count} {worst.type} instead of {len(group.devices)} devices"
            )
    return lines


def memory_lines(job: Job, use: MemoryUse) -> list[str]:
    """Return the table of a plan's memory for the terminal."""
    made = rows(job, use)
    width = max([len("devices"), *(len(_ids(row.devices)) for row in made)])
    lines = [
        "memory of every device; an engine's KV pool takes what is useful of the room beside what the phase needs",
        f"{'devices':<{width}} {'type':<14} {'phase':<20} {'needs':>10} {'KV pool':>10} {'limit':>10}  "
        f"{'verdict':<12} largest term",
    ]
    for row in made:
        needs, pool, limit = map(format_bytes, (row.needed_bytes, row.reserved_bytes, row.limit_bytes))
        verdict = row.verdict.replace("_", " ")
        lines.append(
            f"{_ids(row.devices):<{width}} {row.type:<14} {row.phase:<20} {needs:>10} {pool:>10} {limit:>10}  "
            f"{verdict:<12} {row.dominant_term} {format_bytes(row.dominant_bytes)}"
        )
    hosts = [
        f"{job.topology.nodes[node].id} {format_bytes(needed)} of {format_bytes(use.host_limits[node])}"
        for node, needed in use.hosts.items()
    ]
    lines.append(f"host RAM: {_first(hosts)}")
    for task, pools in use.kv_tokens.items():
        lines.append(f"KV pool of {task} in tokens, by replica: {_first([f'{tokens:,.0f}' for tokens in pools])}")
    return lines


def _first(entries: list[str]) -> str:
    """All entries, or as many as a terminal can show and how many there are besides."""
    more = f" and {len(entries) - MOST_SHOWN} more" if len(entries) > MOST_SHOWN else ""
    return ", ".join(entries[:MOST_SHOWN]) + more
