"""plan.json: the versioned, schema-checked form of a plan.

A document carries the configuration it was made from, so that the job can be rebuilt; the plan; the prediction; and
where every figure comes from. It holds no clock times: equal input, seed and budget give equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetrl.errors import Problem, SpecError
from hetrl.files import write_json_atomically
from hetrl.plan.plan import Group, Plan, Replica, Residency, Stage, TaskPlan
from hetrl.plan.schema import schema_problems
from hetrl.spec.job import Job
from hetrl.units import format_bytes

FORMAT = "hetrl-plan"
VERSION = 1
MAX_PLAN_BYTES = 64 * 1024**2
WEIGHT_SYNC_BUCKET_BYTES = 256 * 1024**2
"""One bucket size for all senders and receivers, stated in the plan: ends that disagree would hang."""


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """A plan with everything that plan.json says about it.

    Parameters
    ----------
    config
        The job's configuration as plain data; `hetrl.spec.load.job_from_values` rebuilds the job.
    config_folder
        Folder that relative paths of the configuration start from.
    tasks
        Per task its kind, role and model, as written.
    prediction, provenance, search, assumed, warnings, notes
        As in the schema.
    unsupported
        What the runtime of this version cannot carry out; empty if the plan can be launched.
    """

    plan: Plan
    config: Mapping[str, Any]
    config_folder: str
    devices: tuple[Mapping[str, Any], ...]
    tasks: tuple[Mapping[str, Any], ...]
    prediction: Mapping[str, Any]
    provenance: Mapping[str, str] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    bucket_bytes: int = WEIGHT_SYNC_BUCKET_BYTES

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON data, keys in the order in which a person reads them."""
        described = {entry["task"]: entry for entry in self.tasks}
        return {
            "format": FORMAT,
            "version": VERSION,
            "groups": [{"tasks": list(group.tasks), "devices": list(group.devices)} for group in self.plan.groups],
            "tasks": [
                {**{key: described[task.task][key] for key in ("task", "kind", "role", "model")}, **_task_json(task)}
                for task in self.plan.tasks
            ],
            "prediction": dict(self.prediction),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "unsupported": list(self.unsupported),
            "assumed": dict(self.assumed),
            "provenance": dict(self.provenance),
            "search": dict(self.search),
            "weight_sync": {"bucket_bytes": self.bucket_bytes},
            "devices": [dict(device) for device in self.devices],
            "config": dict(self.config),
            "config_folder": self.config_folder,
        }

    def write(self, path: Path) -> None:
        """Write plan.json, whole or not at all."""
        write_json_atomically(path, self.to_json())


def describe_devices(job: Job) -> tuple[dict[str, Any], ...]:
    """Every device of the job's fleet: id, node, position and type."""
    return tuple(
        {
            "id": device.id,
            "node": job.topology.nodes[device.node].id,
            "local_index": device.local_index,
            "type": device.type.name,
        }
        for device in job.topology.devices
    )


def describe_tasks(job: Job) -> tuple[dict[str, Any], ...]:
    """Every task's kind, role and model."""
    return tuple(
        {"task": task.name, "kind": task.kind, "role": task.role, "model": task.model.name}
        for task in job.workflow.tasks
    )


def _task_json(task: TaskPlan) -> dict[str, Any]:
    return {
        "micro_batch_size": task.micro_batch_size,
        "recompute": task.recompute,
        "sharding": task.sharding,
        "residency": {
            "weights_when_idle": task.residency.weights_when_idle,
            "optimizer_states": task.residency.optimizer_states,
        },
        "replicas": [
            {
                "num_prompts": replica.num_prompts,
                "stages": [
                    {"num_layers": stage.num_layers, "devices": list(stage.devices)} for stage in replica.stages
                ],
            }
            for replica in task.replicas
        ],
    }


def check_schema(document: object, source: str) -> None:
    """Raise a SpecError with every place where the document departs from the schema."""
    if isinstance(document, dict):
        problems = _version_problems(document, source)
        if problems:
            raise SpecError(problems)
    problems = schema_problems(
        document, package="hetrl.plan", schema="plan.schema.json", source=source, rule="PLAN_SCHEMA"
    )
    if problems:
        raise SpecError(problems)


def _version_problems(document: Mapping[str, Any], source: str) -> list[Problem]:
    problems = []
    if document.get("format") != FORMAT:
        problems.append(
            Problem(
                path=source,
                message="not a hetrl plan",
                found=repr(document.get("format")),
                valid=f'"format": "{FORMAT}"',
            )
        )
    elif document.get("version") != VERSION:
        problems.append(
            Problem(
                path=source,
                message="plan of another schema version",
                found=repr(document.get("version")),
                valid=f"version {VERSION}; plan again with this hetrl",
                rule="PLAN_VERSION",
            )
        )
    return problems


def read_plan(path: Path) -> PlanDocument:
    """Read and check plan.json.

    Raises
    ------
    SpecError
        If the file cannot be read, is not JSON, is too large, has another version, or violates the schema or the
        rules of `Plan`.
    """
    source = str(path)
    try:
        size = path.stat().st_size
        if size > MAX_PLAN_BYTES:
            raise SpecError(
                Problem(
                    path=source,
                    message="plan is too large",
                    found=format_bytes(size),
                    valid=f"at most {format_bytes(MAX_PLAN_BYTES)}",
                )
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(Problem(path=source, message=f"cannot be read: {error.strerror or error}")) from error
    except UnicodeDecodeError as error:
        raise SpecError(Problem(path=source, message="not UTF-8 text")) from error
    return document_from_text(text, source)


def document_from_text(text: str, source: str) -> PlanDocument:
    """Return the checked document of a plan.json's text; see `read_plan`."""
    try:
        document = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise SpecError(
            Problem(
                path=source,
                message=f"not valid JSON (cut off?): {error}",
                valid="the whole file that hetrl plan wrote",
                rule="JSON",
            )
        ) from error
    return document_from_json(document, source)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number of JSON")
    return value


def document_problems(job: Job, document: PlanDocument) -> list[Problem]:
    """Where a document describes other devices or tasks than those of the job that it carries."""
    problems = []
    for path, told, known in (
        ("devices", document.devices, describe_devices(job)),
        ("tasks", document.tasks, describe_tasks(job)),
    ):
        key = "id" if path == "devices" else "task"
        by_key = {entry[key]: entry for entry in known}
        for number, entry in enumerate(told):
            right = by_key.get(entry[key], {})
            wrong = [name for name in entry if entry[name] != right.get(name)]
            problems += [
                Problem(
                    path=f"{path}[{number}].{name}",
                    message="not what the plan's config says",
                    found=str(entry[name])[:100],
                    valid=str(right.get(name, f"one of the {len(known)} {path} of the config")),
                    rule="PLAN_DOCUMENT",
                )
                for name in (wrong if right else [key])
            ]
        if sorted(str(entry[key]) for entry in told) != sorted(map(str, by_key)):
            problems.append(
                Problem(
                    path=path,
                    message=f"not the {path} of the plan's config, each once",
                    found=f"{len(told)} entries",
                    valid=f"{len(known)} entries",
                    rule="PLAN_DOCUMENT",
                )
            )
    return problems[:20]


def document_from_json(document: Any, source: str) -> PlanDocument:
    """Return the checked document of JSON data; see `read_plan`."""
    if not isinstance(document, dict):
        raise SpecError(
            Problem(path=source, message="not a hetrl plan", found=type(document).__name__, valid="a JSON object")
        )
    check_schema(document, source)
    known = {device["id"] for device in document["devices"]}
    problems = [
        Problem(path=f"{source}: groups[{number}].devices", message="unknown device id", found=str(device), rule="PLAN")
        for number, group in enumerate(document["groups"])
        for device in group["devices"]
        if device not in known
    ]
    if problems:
        raise SpecError(problems)
    plan = Plan(
        groups=tuple(
            Group(tasks=tuple(group["tasks"]), devices=tuple(group["devices"])) for group in document["groups"]
        ),
        tasks=tuple(_task_plan(entry) for entry in document["tasks"]),
    )
    return PlanDocument(
        plan=plan,
        config=document["config"],
        config_folder=document.get("config_folder", ""),
        devices=tuple(document["devices"]),
        tasks=tuple({key: entry[key] for key in ("task", "kind", "role", "model")} for entry in document["tasks"]),
        prediction=document["prediction"],
        provenance=document["provenance"],
        search=document["search"],
        assumed=document["assumed"],
        warnings=tuple(document["warnings"]),
        notes=tuple(document["notes"]),
        unsupported=tuple(document["unsupported"]),
        bucket_bytes=document["weight_sync"]["bucket_bytes"],
    )


def _task_plan(entry: Mapping[str, Any]) -> TaskPlan:
    return TaskPlan(
        task=entry["task"],
        micro_batch_size=entry["micro_batch_size"],
        recompute=entry["recompute"],
        sharding=entry["sharding"],
        residency=Residency(**entry["residency"]),
        replicas=tuple(
            Replica(
                num_prompts=replica["num_prompts"],
                stages=tuple(
                    Stage(num_layers=stage["num_layers"], devices=tuple(stage["devices"]))
                    for stage in replica["stages"]
                ),
            )
            for replica in entry["replicas"]
        ),
    )
