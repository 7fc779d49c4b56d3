"""Jobs as the commands see them: with what the built-in cost model knows of links, and its unit costs."""

from __future__ import annotations

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.spec.job import Job


def prepared(job: Job) -> tuple[Job, UnitCosts]:
    """Return the job with measured links, and the unit costs of its precision."""
    model = CostModel.builtin()
    return model.with_links(job), UnitCosts(model, job.precision)
