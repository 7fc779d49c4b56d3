"""Read what a user points at: a job file, or a plan.json with the job it was made from."""

from __future__ import annotations

from pathlib import Path

from hetrl.plan.document import read_plan
from hetrl.plan.plan import Plan
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values, load_job
from hetrl.spec.yaml_text import read_text


def read_job_or_plan(path: Path) -> tuple[Job, Plan | None]:
    """Return the job, and the plan if the file is one (it starts with a brace)."""
    if path.suffix == ".json" or read_text(path, "job file or plan", 64 * 1024**2).lstrip().startswith("{"):
        document = read_plan(path)
        return job_from_values(
            dict(document.config), source=str(path), base=path.parent / document.config_folder
        ), document.plan
    return load_job(path), None
