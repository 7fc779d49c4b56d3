"""What must hold inside a certificate before its figures mean anything; single values are the schema's to check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hetrl.errors import Problem
from hetrl.search.exact.milp import objective_of
from hetrl.search.exact.result import SOME_VECTORS, Certificate, CertificateColumn
from hetrl.spec.job import Job

TOLERANCE = 1e-9


def equal(a: float, b: float) -> bool:
    """Whether two figures are the same but for rounding."""
    return a == b or abs(a - b) <= TOLERANCE * abs(b)


@dataclass
class Verdict:
    """Problems found, and what was checked."""

    problems: list[Problem] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    def expect(self, holds: bool, path: str, message: str, found: object, valid: object) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(
                Problem(path=path, message=message, found=str(found), valid=str(valid), rule="CERTIFICATE")
            )


def check_structure(job: Job, column: CertificateColumn, verdict: Verdict) -> None:
    """Check that a column's tasks are the job's, and that each has its seconds, realisation and shares."""
    path = f"columns.{column.name}"
    tasks = set(column.tasks)
    known = {task.name for task in job.workflow.tasks}
    verdict.expect(tasks <= known, f"{path}.tasks", "are not the job's", sorted(tasks), sorted(known))
    for what, keys in (("seconds", column.seconds), ("realisation", column.realisation)):
        verdict.expect(keys.keys() == tasks, f"{path}.{what}", "is not of its tasks", sorted(keys), sorted(tasks))
    for name, each in column.realisation.items():
        where = f"{path}.realisation.{name}.shares"
        replicas, shares = len(each["stages"]), each["shares"]
        verdict.expect(len(shares) == replicas, where, "are not one for every replica", len(shares), replicas)
        total = job.batch.num_prompts
        verdict.expect(sum(shares) == total, where, "do not add up to the prompts of a step", sum(shares), total)


def check_choices(job: Job, certificate: Certificate, verdict: Verdict) -> None:
    """Check that what is chosen, and every combination, does each task once, and relaxed seconds follow from loads."""
    by_name = {column.name: column for column in certificate.columns}
    wanted = sorted(task.name for task in job.workflow.tasks)

    def covers(path: str, names: Sequence[str]) -> None:
        found = sorted(task for name in names for task in by_name[name].tasks)
        verdict.expect(found == wanted, path, "does not do every task once", found, wanted)

    covers("chosen", certificate.chosen)
    for each in certificate.combinations:
        path = f"combinations.{'+'.join(each.columns)}"
        covers(path, each.columns)
        again = objective_of(each.columns, certificate.space.phases, [by_name[name] for name in each.columns], ())
        found = each.relaxed_seconds
        verdict.expect(equal(found, again), f"{path}.relaxed_seconds", "do not follow from the loads", found, again)


def check_removals(certificate: Certificate, partitions: Collection[str], verdict: Verdict) -> None:
    """Check that nothing was removed that could beat the optimum, and that every partition is accounted for.

    A partition is accounted for if it was removed as a whole, or if the certificate says how many of its columns were.
    That the bounds are right is not checked.

    Parameters
    ----------
    partitions
        Names of all partitions of the space.
    """
    removals, optimum = certificate.removals, certificate.optimum_seconds
    unknown = sorted({each.partition for each in removals}.difference(partitions))
    verdict.expect(not unknown, "removals", "are of partitions that the space does not have", unknown[:3], "")
    told = Counter(each.partition for each in removals if each.reason != SOME_VECTORS)
    missing = sorted(set(partitions).difference(told))
    verdict.expect(
        not missing,
        "removals",
        f"do not account for {len(missing)} of {len(partitions)} partitions of the tasks: one of them could win",
        f"nothing of {'; '.join(missing[:3])}",
        "each either removed, or with the number of its columns that were",
    )
    twice = [partition for partition, number in told.items() if number > 1]
    verdict.expect(not twice, "removals", "say twice what became of a partition", twice[:3], "")
    verdict.checked["partitions accounted for"] = len(told)
    for number, each in enumerate(removals):
        groups = each.partition.split(" | ") if each.reason == SOME_VECTORS else [""]
        verdict.expect(each.group in groups, f"removals[{number}].group", "is not the partition's", each.group, groups)
        verdict.expect(
            each.bound_seconds >= optimum * (1 - TOLERANCE),
            f"removals[{number}].bound_seconds",
            "is below the optimum: what was removed could win",
            each.bound_seconds,
            f"at least {optimum}",
        )
