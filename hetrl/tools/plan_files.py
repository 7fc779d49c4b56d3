"""The files of ``hetrl plan``: plan.json, and beside it the certificate and the clock times of the same search.

What lies beside a plan.json belongs to it: once the new plan is there, the certificate of the old one goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hetrl.errors import Problem, SpecError
from hetrl.files import write_json_atomically
from hetrl.plan.document import PlanDocument
from hetrl.spec.job import Job

if TYPE_CHECKING:
    from hetrl.search.exact.result import Certificate

HEAD_BYTES = 256
"""The certificate's format stands at its beginning."""


def certificate_beside(plan: Path) -> Path:
    """Return where the certificate of a plan.json lies."""
    return plan.with_name(f"{plan.stem}.certificate.json")


def timings_beside(plan: Path) -> Path:
    """Return where the clock times of a plan.json lie."""
    return plan.with_name(f"{plan.stem}.timings.json")


def write_results(
    out: Path | None,
    document: PlanDocument,
    timings: Callable[[], Mapping[str, object]],
    *,
    job: Job,
    certificate: Certificate | None,
    certificate_path: Path | None,
) -> list[Path]:
    """Write what is asked for, the plan first: where the disk is full, no certificate stands without its plan.

    Parameters
    ----------
    out
        Where plan.json goes; None for nowhere.
    timings
        Gives the clock times, once the plan is written.

    Returns
    -------
    list
        The files written.
    """
    written = []
    if out is not None:
        document.write(out)
        written.append(out)
        if out.is_file():  # not /dev/stdout
            remove_old(certificate_beside(out), timings_beside(out))
    if certificate is not None and certificate_path is not None:
        from hetrl.search.exact.certificate_file import write_certificate

        write_certificate(certificate_path, job, certificate, config_folder=document.config_folder)
        written.append(certificate_path)
    if out is not None and out.is_file():
        write_json_atomically(timings_beside(out), timings())
        written.append(timings_beside(out))
    return written


def remove_old(certificate: Path, timings: Path) -> None:
    """Remove the certificate and the times of the plan that was there before; a file of another kind stays."""
    try:
        timings.unlink(missing_ok=True)
        if certificate.is_file() and is_certificate(certificate):
            certificate.unlink()
    except OSError as error:
        message = f"the old plan's cannot be removed: {error.strerror}"
        raise SpecError(Problem(path=error.filename or str(certificate), message=message, rule="OUTPUT")) from error


def is_certificate(path: Path) -> bool:
    """Whether a file begins as certificates do."""
    with path.open("rb") as stream:
        return b'"hetrl-certificate"' in stream.read(HEAD_BYTES)
