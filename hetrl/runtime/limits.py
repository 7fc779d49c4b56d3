"""What a run needs and what this runtime refuses, checked before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hetrl.errors import NotSupported, Problem, SpecError
from hetrl.plan.capabilities import unsupported
from hetrl.plan.plan import Plan
from hetrl.spec.job import Job, RunSettings

TORCH_DTYPES = {"fp32": "float32"}
_NEEDED = ("actor_path", "prompts", "reward")


def resolve_run(run: RunSettings | None, job: Job, base: Path) -> RunSettings | None:
    """Return the settings with every path absolute, and the actor's folder filled in where the workflow names one.

    Relative paths are tried against the working directory, then against ``base``, the configuration's folder.
    """
    if run is None:
        return None

    def absolute(path: str) -> str:
        return str(Path(path).resolve() if not path or Path(path).exists() else (base / path).resolve())

    actor = next((task.model.name for task in job.workflow.tasks if task.role == "actor"), "")
    actor_path = run.actor_path or (actor if (Path(absolute(actor)) / "config.json").is_file() else "")
    module, separator, function = run.reward.rpartition(":")
    is_file = module.endswith(".py")
    return replace(
        run,
        actor_path=absolute(actor_path) if actor_path else "",
        prompts=absolute(run.prompts) if run.prompts else "",
        reward=f"{absolute(module)}{separator}{function}" if is_file else run.reward,
    )


def missing_run_keys(run: RunSettings | None) -> list[Problem]:
    """Name each key of the ``run:`` section that a launch needs and does not have."""
    return [
        Problem(path=f"run.{key}", message="missing; hetrl-launch needs it")
        for key in _NEEDED
        if run is None or not getattr(run, key)
    ]


def check_launchable(plan: Plan, job: Job, run: RunSettings | None) -> None:
    """Check everything that can be checked without Ray.

    Raises
    ------
    NotSupported
        Naming everything the plan asks for that this runtime does not carry out.
    SpecError
        Naming missing ``run:`` keys, a model folder that is none, and shares that do not fit the batch.
    """
    refused = [*unsupported(job.workflow, plan), *_unsupported_job(job)]
    if refused:
        raise NotSupported(refused)
    problems = missing_run_keys(run)
    if run is not None and run.actor_path and not (Path(run.actor_path) / "config.json").is_file():
        problems.append(
            Problem(
                path="run.actor_path", message="no model there", found=run.actor_path, valid="a folder with config.json"
            )
        )
    for task in plan.tasks:
        if task.num_prompts != job.batch.num_prompts:
            problems.append(
                Problem(
                    path=f"tasks.{task.task}",
                    message=f"shares add up to {task.num_prompts} prompts, the batch has {job.batch.num_prompts}",
                )
            )
    if problems:
        raise SpecError(problems)


def _unsupported_job(job: Job) -> list[Problem]:
    asked = {
        f"training in {job.precision.dtype}": job.precision.dtype not in TORCH_DTYPES,
        "LoRA in training": job.precision.lora_rank > 0,
        f"optimizer {job.precision.optimizer}": job.precision.optimizer != "adamw",
        "asynchronous steps (staleness > 0)": job.staleness > 0,
    }
    problems = [
        Problem(path="job", message=f"NotSupported: {name}", rule="CAPABILITY")
        for name, is_asked in asked.items()
        if is_asked
    ]
    vendors = {device_type.name: device_type.vendor for device_type in job.topology.device_types}
    problems += [
        Problem(
            path="cluster_topology",
            message=f"NotSupported: workers on {name} devices",
            valid="CPU devices",
            rule="CAPABILITY",
        )
        for name, vendor in vendors.items()
        if vendor != "cpu"
    ]
    return problems
