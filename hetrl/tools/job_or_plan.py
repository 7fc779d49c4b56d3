"""Read what a user points at: a job file, or a plan.json with the job it was made from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hetrl.cost.estimate import Estimate
from hetrl.cost.model import CostModel
from hetrl.errors import SpecError
from hetrl.plan.document import MAX_PLAN_BYTES, PlanDocument, document_from_text, document_problems, read_plan
from hetrl.plan.plan import Plan
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.yaml_text import folder_of, parse_yaml, read_text
from hetrl.units import format_seconds

SAME = 1e-9


def read_job_or_plan(path: Path, overrides: Mapping[str, object] | None = None) -> tuple[Job, Plan | None]:
    """Return the job, and the plan if the file is one; ``overrides`` are those of `load_job`, for a job file."""
    source = str(path)
    if path.suffix == ".json":
        document = read_plan(path)
    else:
        text = read_text(path, "job file or plan", MAX_PLAN_BYTES, pipes=True)  # once: it may be a pipe
        if not _starts_as_plan(text):
            values, base = parse_yaml(text, source), folder_of(path)
            return job_from_values(values, source=source, base=base, overrides=overrides), None
        document = document_from_text(text, source)
    return job_of(document, path), document.plan


def job_of(document: PlanDocument, path: Path) -> Job:
    """Return the job that a plan.json was made from; SpecError if its tables are not that job's."""
    job = job_from_values(dict(document.config), source=str(path), base=folder_of(path) / document.config_folder)
    problems = document_problems(job, document)
    if problems:
        raise SpecError(replace(problem, path=f"{path}: {problem.path}") for problem in problems)
    return job


def note_another_prediction(path: Path, model: CostModel, estimate: Estimate) -> bool:
    """Say on stderr, and return, whether a plan.json predicts another step: of another cost model or version.

    A pipe, which can be read only once, is not compared.
    """
    if not path.is_file():
        return False
    document = read_plan(path)
    planned, made_with = document.prediction["step_seconds"], document.search.get("cost_model", "unknown")
    another = abs(planned - estimate.step_seconds) > SAME * planned
    if another:
        print(
            f"note: {path} predicts {format_seconds(planned)}, with the cost model {made_with}; "
            f"here it is {format_seconds(estimate.step_seconds)}, with the cost model {model.source} (--models)",
            file=sys.stderr,
        )
    return bool(another)


def is_plan(path: Path) -> bool:
    """Whether a file is a plan.json: named so, or starting with a brace."""
    return path.suffix == ".json" or _starts_as_plan(read_text(path, "job file or plan", MAX_PLAN_BYTES))


def _starts_as_plan(text: str) -> bool:
    return text.lstrip().startswith("{")
