"""Say which parts of hetrl work in this environment, and how to repair those that do not.

Exit code 0 if planning works, whatever else is missing; 4 if it does not.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict

from hetrl import __version__
from hetrl.errors import EXIT_OK, EXIT_RUNTIME
from hetrl.tools.cli import run_command
from hetrl.tools.environment import Finding, examine

_SIGNS = {"works": "ok", "missing": "--", "broken": "!!"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl doctor``."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Examine the environment and print what was found."""
    findings = examine()
    print(_as_json(findings) if args.json else _as_text(findings))
    planning_works = all(finding.state == "works" for finding in findings if finding.part == "planning")
    return EXIT_OK if planning_works else EXIT_RUNTIME


def _parts(findings: Sequence[Finding]) -> dict[str, bool]:
    """Return each part and whether all that it needs works; a part with alternatives needs one of them."""
    states: dict[str, list[bool]] = {}
    for finding in findings:
        states.setdefault(finding.part, []).append(finding.state == "works")
    return {part: any(found) if part in ("solvers", "accelerators") else all(found) for part, found in states.items()}


def _as_json(findings: Sequence[Finding]) -> str:
    report = {
        "hetrl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "parts": _parts(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(report, indent=2)


def _as_text(findings: Sequence[Finding]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = [f"hetrl {__version__}, Python {platform.python_version()}, {platform.platform()}"]
    for part, works in _parts(findings).items():
        lines += ["", f"{part}: {'works' if works else 'not available'}"]
        for finding in findings:
            if finding.part == part:
                lines.append(f"  {_SIGNS[finding.state]} {finding.name:<{width}}  {finding.detail}".rstrip())
                if finding.fix:
                    lines.append(f"     {'':<{width}}  fix: {finding.fix}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl doctor`` and return its exit code."""
    return run_command(add_arguments, run, argv, prog="hetrl doctor", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
