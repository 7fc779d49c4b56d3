"""Check the certificate of an exact plan.

Every column is costed anew, the integer program is rebuilt from the columns and solved by another solver, every
combination in it is evaluated by the readable evaluator, and every partition of the tasks must be accounted for. That
no column which the certificate leaves out can win rests on the solver's bounds; only with --complete, which solves the
job anew, is that checked, too. Exit code 2 if anything does not hold, with every problem.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.plan.document import read_plan
from hetrl.spec.load import MIP_SOLVERS, job_from_values
from hetrl.tools.cli import run_command
from hetrl.tools.plan import read_cost_model
from hetrl.tools.plan_files import certificate_beside
from hetrl.units import format_seconds

if TYPE_CHECKING:
    from hetrl.search.exact.certificate_file import CertificateFile
    from hetrl.search.exact.result import Certificate

CERTIFICATE_SUFFIX = ".certificate.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl certify``."""
    parser.add_argument("file", type=Path, help="certificate written by hetrl plan --solver ilp")
    parser.add_argument("--models", type=Path, help="cost model that the plan was made with (default: built-in)")
    parser.add_argument(
        "--mip", choices=MIP_SOLVERS, help="solver to check with (default: another than the file's, if installed)"
    )
    parser.add_argument("--complete", action="store_true", help="prove the optimum anew as well")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress on the terminal")


def run(args: argparse.Namespace) -> int:
    """Read, check, report."""
    from hetrl.search.exact.certificate_file import read_certificate
    from hetrl.search.exact.checking import check_certificate, check_completeness

    file = read_certificate(args.file)
    problems = problems_beside(args.file, file)
    if problems:
        raise SpecError(problems)
    model = read_cost_model(args.models)
    base = args.file.parent / file.config_folder
    job = model.with_links(job_from_values(dict(file.config), source=str(args.file), base=base))
    costs = UnitCosts(model, job.precision)
    certificate = file.certificate
    mip = args.mip or _another(certificate.solver)
    quiet = args.quiet or args.json or not sys.stderr.isatty()
    verdict = check_certificate(job, costs, certificate, mip=mip, progress=None if quiet else _progress)
    if verdict.holds and args.complete:
        again = check_completeness(job, costs, certificate)
        verdict.problems += again.problems
        verdict.checked |= again.checked
    if not verdict.holds:
        raise SpecError(verdict.problems[:50])
    if args.json:
        optimum = certificate.optimum_seconds
        said = {"holds": True, "complete": args.complete, "optimum_seconds": optimum, "checked": verdict.checked}
        print(json.dumps(said))
    else:
        print("\n".join(verdict_lines(certificate, verdict.checked, complete=args.complete)))
    return EXIT_OK


def verdict_lines(certificate: Certificate, checked: Mapping[str, int], *, complete: bool) -> list[str]:
    """Say what holds: an optimum only where it was proven anew, else the best of what the certificate lists."""
    from hetrl.search.exact.result import REMOVAL_REASONS

    optimum = format_seconds(certificate.optimum_seconds)
    if complete:
        lines = [f"the certificate holds, and the optimum of the declared space is {optimum}: proven anew"]
    else:
        lines = [f"the certificate holds as far as it was checked: {optimum} is the best step of the columns it lists"]
    lines += [f"  {what}: {number:,}" for what, number in checked.items()]
    if not complete:
        counted = {
            what: sum(each.number for each in certificate.removals if each.reason == reason)
            for reason, what in REMOVAL_REASONS.items()
        }
        lines.append("not checked: the bounds by which the solver removed all other columns (--complete proves anew)")
        lines += [f"  {what}: {number:,}" for what, number in counted.items()]
    return lines


def _another(mip: str) -> str:
    """Another solver than a certificate's; the same where no other is installed, which is said."""
    from hetrl.search.exact.milp import is_available

    others = [each for each in ("cbc", "highs") if each != mip and is_available(each)]
    if not others:
        print(f"note: checked by {mip} itself; pip install 'hetrl[highs]' for another solver", file=sys.stderr)
    return others[0] if others else mip


def problems_beside(path: Path, file: CertificateFile) -> list[Problem]:
    """Whether the plan.json that a certificate lies beside, by its name or by the plan's word, is another's."""
    problems = []
    for plan in dict.fromkeys(
        (path.with_name(path.name.removesuffix(CERTIFICATE_SUFFIX) + ".json"), path.with_name("plan.json"))
    ):
        if plan == path or not plan.is_file():
            continue
        document = read_plan(plan)
        named = document.search.get("certificate") == path.name
        if not named and certificate_beside(plan) != path:
            continue  # neither says that it belongs to the other
        optimum = file.certificate.optimum_seconds
        value = document.search.get("objective_value")
        message = "the certificate beside this plan belongs to another plan"
        if not named:
            problems.append(
                Problem(
                    path=f"{plan}: search.certificate",
                    message=message,
                    found=str(document.search.get("certificate")),
                    valid=path.name,
                )
            )
        elif document.config != file.config:
            problems.append(Problem(path=f"{plan}: config", message=f"{message}: of another job"))
        elif not isinstance(value, int | float) or abs(value - optimum) > 1e-9 * abs(optimum):
            problems.append(
                Problem(path=f"{plan}: search.objective_value", message=message, found=str(value), valid=str(optimum))
            )
    return problems


def _progress(what: str) -> None:
    print(f"\r\033[Kchecking: {what}", end="", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl certify``."""
    return run_command(add_arguments, run, argv, prog="hetrl certify", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
