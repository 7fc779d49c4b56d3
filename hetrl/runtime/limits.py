"""What a run needs and what this runtime refuses, checked before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hetrl.errors import NotSupported, Problem, SpecError
from hetrl.plan.capabilities import unsupported
from hetrl.plan.plan import Plan
from hetrl.spec.job import Job, RunSettings

TORCH_DTYPES = {"fp32": "float32"}
_NEEDED = ("actor_path", "prompts", "reward")


def resolve_run(run: RunSettings, job: Job, base: Path) -> RunSettings:
    """Return the settings with every path absolute, and the actor's folder filled in where the workflow names one.

    The prompts and a reward file are tried against ``base``, the configuration's folder, then against the working
    directory; the actor's folder the other way round, as the planner reads models.
    """
    actor = next((task.model.name for task in job.workflow.tasks if task.role == "actor"), "")
    folder = _first_existing(run.actor_path or actor, Path(), base)
    module, _, function = run.reward.rpartition(":")
    return replace(
        run,
        actor_path=folder if run.actor_path or (folder and (Path(folder) / "config.json").is_file()) else "",
        prompts=_first_existing(run.prompts, base, Path()),
        reward=f"{_first_existing(module, base, Path())}:{function}" if module.endswith(".py") else run.reward,
    )


def _first_existing(path: str, *roots: Path) -> str:
    """Return ``path`` under the first root where it exists, absolute; under the first root if under none."""
    if not path:
        return ""
    found = next((root / path for root in roots if (root / path).exists()), roots[0] / path)
    return str(found.resolve())


def missing_run_keys(run: RunSettings) -> list[Problem]:
    """Name each key of the ``run:`` section that a launch needs and does not have."""
    return [
        Problem(path=f"run.{key}", message="missing; hetrl-launch needs it") for key in _NEEDED if not getattr(run, key)
    ]


def launch_problems(plan: Plan, job: Job, run: RunSettings) -> list[Problem]:
    """Everything that keeps a plan from being run, as far as it can be known without Ray.

    What this runtime does not carry out (rule ``CAPABILITY``), missing ``run:`` keys, a model folder that is none,
    shares that do not fit the batch.
    """
    problems = [*unsupported(job, plan), *missing_run_keys(run)]
    if run.actor_path and not (Path(run.actor_path) / "config.json").is_file():
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
    return problems


def raise_if_any(problems: Sequence[Problem]) -> None:
    """Raise the problems, if any: as :class:`NotSupported` if all are missing capabilities, else as a SpecError."""
    if problems:
        raise (NotSupported if all(each.rule == "CAPABILITY" for each in problems) else SpecError)(problems)
