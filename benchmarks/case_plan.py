"""The question that lets a case run the planner itself; see `benchmarks.case_asks` for the others.

The cost model and its compiled kernels are imported only when a case asks.
"""

from __future__ import annotations

from typing import Any

from benchmarks.case_asks import ASKS, Answer, Given
from hetrl.errors import InfeasibleError
from hetrl.plan.document import WEIGHT_SYNC_BUCKET_BYTES
from hetrl.plan.rules import plan_problems
from hetrl.spec.load import job_from_values

QUICK_BUDGET = 60


def plan(given: Given) -> Answer:
    """What does the planner make of a job? A short search; the plan is checked against every hard rule."""
    from benchmarks.prepared import prepared
    from hetrl.search.hybrid import solve

    overrides = {"optimizer.budget": given.get("budget", QUICK_BUDGET), **given.get("overrides", {})}
    job = job_from_values(given["config"], overrides=overrides)
    try:
        result = solve(*prepared(job))
    except InfeasibleError as error:
        return Answer(verdict="reject", rules=("DEVICE_MEMORY",), text=str(error))
    devices = {task.task: list(task.devices) for task in result.plan.tasks}
    used = sorted({device for ids in devices.values() for device in ids})
    types = {task: sorted({job.topology.devices[device].type.name for device in ids}) for task, ids in devices.items()}
    values: dict[str, Any] = {
        "num_groups": len(result.plan.groups),
        "num_devices_used": len(used),
        "devices": devices,
        "device_types": types,
        "vendors_mixed": any(
            len({job.topology.devices[device].type.vendor for device in ids}) > 1 for ids in devices.values()
        ),
        "bucket_bytes": WEIGHT_SYNC_BUCKET_BYTES,
        "step_seconds": result.estimate.step_seconds,
    }
    return Answer.of(plan_problems(job, result.plan), values)


ASKS["plan"] = plan
