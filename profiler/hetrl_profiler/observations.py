"""From stored measurements to observations of phases: which device type, model and links they belong to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetrl.cost.model import PHASES
from hetrl.errors import Problem, SpecError
from hetrl.measure import Measurement
from hetrl.spec.devices import DeviceType
from hetrl.spec.job import Job
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model
from hetrl.spec.topology import Link, share_machine
from hetrl_profiler.composed import NEEDED, PHASE_OF_KIND, Observation
from hetrl_profiler.described import NETWORK, is_profile

SYNC_PHASE = "weight_sync"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What measurements do not say themselves.

    Parameters
    ----------
    devices
        Device type by name.
    job
        The job that ran; None for measurements of a profile alone.
    micro_batch_sizes
        Task -> micro-batch size, where measurements lack it.
    """

    devices: Mapping[str, DeviceType]
    job: Job | None = None
    micro_batch_sizes: Mapping[str, int] = field(default_factory=dict)


def observe(measurements: Sequence[Measurement], surroundings: Surroundings) -> list[Observation]:
    """Observations of all measured phases; measurements of other kinds and other devices are passed over.

    Raises
    ------
    SpecError
        Naming every figure that a kind of measurement lacks.
    """
    models: dict[str, Model] = {}
    found: list[Observation] = []
    problems: dict[str, Problem] = {}
    for each in _with_sync(measurements, surroundings):
        device = surroundings.devices.get(each.device_type)
        if device is None or not set(PHASE_OF_KIND.get(each.kind, ("",))) <= set(PHASES):
            continue
        completed = _completed(each, surroundings)
        if completed.amounts.get("num_sequences", 1) == 0:
            continue  # a replica with an empty share
        missing = [name for name in NEEDED[each.kind] if name not in completed.amounts]
        if missing:
            problem = _missing(each, missing)
            problems[problem.path] = problem
            continue
        model = _model(each, surroundings, models)
        alone = each.kind == "all_reduce" or (each.kind == "optimizer_step" and "num_parameters" in each.amounts)
        if model is None and not alone:
            problems[f"{each.kind}.model"] = Problem(
                path=f"measurements of kind {each.kind}", message="do not say which model ran",
                valid="the job or plan that was run (--config), or a profile made with --model",
            )  # fmt: skip
            continue
        reduce_link = _reduce_link(surroundings.job, each)
        if each.kind == "all_reduce" and reduce_link is None:
            continue  # the job has no such link
        found.append(
            Observation(
                measurement=completed,
                device=device,
                model=model,
                reduce_link=reduce_link,
                sync_links=_sync_links(surroundings.job),
            )
        )
    if problems:
        raise SpecError(problems.values())
    return found


def _missing(measurement: Measurement, names: Sequence[str]) -> Problem:
    return Problem(
        path=f"measurements of kind {measurement.kind}",
        message=f"lack the amounts {', '.join(names)}",
        valid="measurements of this version's runtime, and the plan that was run (--config plan.json)",
    )


def _with_sync(measurements: Sequence[Measurement], surroundings: Surroundings) -> Iterable[Measurement]:
    """Turn the weight update, which the driver times as one phase, into one of every device type that generates."""
    generating = {each.device_type for each in measurements if each.kind == "generate" and "task" in each.labels}
    for each in measurements:
        if each.kind == "phase" and each.labels.get("phase") == SYNC_PHASE and each.seconds > 0:
            for device in sorted(generating):
                yield replace(each, kind=SYNC_PHASE, device_type=device)
        else:
            yield each


def _completed(measurement: Measurement, surroundings: Surroundings) -> Measurement:
    """Add what the job and the plan know."""
    job, task = surroundings.job, measurement.labels.get("task", "")
    if job is None or not task:
        return measurement
    known: dict[str, float] = {}
    if task in surroundings.micro_batch_sizes:
        known["micro_batch_size"] = surroundings.micro_batch_sizes[task]
    if measurement.kind == "generate" and "num_sequences" in measurement.amounts:
        per_prompt = next(each.sequences_per_prompt for each in job.workflow.tasks if each.name == task)
        known["num_prompts"] = measurement.amounts["num_sequences"] / per_prompt
    return replace(measurement, amounts={**known, **measurement.amounts})


def _model(measurement: Measurement, surroundings: Surroundings, models: dict[str, Model]) -> Model | None:
    text = measurement.labels.get("config")
    if text is not None:
        if text not in models:
            models[text] = find_model({"name": measurement.labels.get("model", "profiled"), "config": json.loads(text)})
        return models[text]
    job = surroundings.job
    if job is None:
        return None
    task = measurement.labels.get("task")
    if measurement.kind == SYNC_PHASE:
        return next((each.model for each in job.workflow.tasks if each.kind == "generate"), None)
    return next((each.model for each in job.workflow.tasks if each.name == task), None)


def _sync_links(job: Job | None) -> tuple[Link, ...]:
    """Link of a weight update inside the node that it reaches.

    What a weight update costs between nodes depends on the plan; it goes to the calibration.
    """
    if job is None:
        return ()
    return (min((node.intra_link for node in job.topology.nodes), key=lambda link: link.bytes_per_second),)


def _reduce_link(job: Job | None, measurement: Measurement) -> Link | None:
    """Link of the job over which an all-reduce went: the slowest one for a run, whose ring is not known.

    A profile measures between nodes of two device types, or inside a host: then it is a node's own link, or where
    every node has one device, the link between two nodes of that host.
    """
    if job is None:
        return None
    nodes = job.topology.nodes
    pairs = [(i, j) for i in range(len(nodes)) for j in range(len(nodes)) if i != j]
    own = [i for i, node in enumerate(nodes) if node.device_type.name == measurement.device_type]
    found = [nodes[i].intra_link for i in own if nodes[i].num_devices > 1]
    if not is_profile(measurement):
        found = [job.topology.node_link(i, j) for i, j in pairs] or [node.intra_link for node in nodes]
    elif measurement.labels.get("link") == NETWORK:
        peer = measurement.labels["peer"]
        apart = [(i, j) for i, j in pairs if i in own and not share_machine(nodes[i], nodes[j])]
        found = [job.topology.node_link(i, j) for i, j in apart if nodes[j].device_type.name == peer]
    elif not found:
        found = [job.topology.node_link(i, j) for i, j in pairs if i in own and share_machine(nodes[i], nodes[j])]
    return min(found, key=lambda link: link.bytes_per_second, default=None)
