"""The certificate's file: JSON with the job it is for, a checksum, and the certificate as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetrl.errors import Problem, SpecError
from hetrl.files import write_json_atomically
from hetrl.plan.schema import schema_problems
from hetrl.search.exact.result import CERTIFICATE_VERSION, Certificate
from hetrl.spec.job import Job
from hetrl.units import format_bytes

FORMAT = "hetrl-certificate"
MAX_BYTES = 512 * 1024**2


@dataclass(frozen=True, kw_only=True)
class CertificateFile:
    """What a file holds."""

    certificate: Certificate
    config: Mapping[str, Any]
    config_folder: str


def write_certificate(path: Path, job: Job, certificate: Certificate, *, config_folder: str) -> None:
    """Write a certificate, whole or not at all."""
    content = {"config": dict(job.config), "config_folder": config_folder, "certificate": certificate.to_json()}
    head = {"format": FORMAT, "version": CERTIFICATE_VERSION, "sha256": checksum(content)}
    write_json_atomically(path, {**head, **content})


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_certificate(path: Path) -> CertificateFile:
    """Read a certificate.

    Raises
    ------
    SpecError
        If the file cannot be read, is too large, is not a certificate, has another version, was changed after it was
        written, or violates the schema.
    """
    source = str(path)

    def refused(message: str, found: str = "", valid: str = "") -> SpecError:
        return SpecError(Problem(path=source, message=message, found=found, valid=valid, rule="CERTIFICATE"))

    try:
        if path.stat().st_size > MAX_BYTES:
            raise refused(
                "certificate is too large", format_bytes(path.stat().st_size), f"at most {format_bytes(MAX_BYTES)}"
            )
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise refused(f"not valid JSON (cut off?): {error}", valid="the whole file that hetrl plan wrote") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise refused("not a certificate", valid=f'"format": "{FORMAT}"')
    if document.get("version") != CERTIFICATE_VERSION:
        raise refused("another version", str(document.get("version")), f"version {CERTIFICATE_VERSION}")
    content: dict[str, Any] = {key: document.get(key) for key in ("config", "config_folder", "certificate")}
    if document.get("sha256") != checksum(content):
        raise refused("the content was changed after it was written: its SHA-256 is another")
    problems = schema_problems(
        document, package="hetrl.search.exact", schema="certificate.schema.json", source=source, rule="CERTIFICATE"
    )
    if problems:
        raise SpecError(problems)
    return CertificateFile(
        certificate=Certificate.from_json(content["certificate"]),
        config=dict(content["config"]),
        config_folder=content["config_folder"],
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
