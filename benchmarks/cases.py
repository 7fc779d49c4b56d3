"""Reports from users of other systems, asked of hetrl: ``python -m benchmarks.cases [--dir DIR] [--json FILE]``.

Each YAML file of a folder is a list of cases in the format of docs/cases.md. Agreement is printed by theme, with a line
for every case that disagrees or is excluded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import case_memory, case_plan, case_sync  # noqa: F401  (they register their asks)
from benchmarks.case_asks import ASKS, Answer, ask
from hetrl.errors import HetrlError, Problem, SpecError, did_you_mean
from hetrl.spec.yaml_text import parse_yaml, read_text

DEFAULT_DIR = Path(__file__).parent.parent / "tests" / "cases"
CASE_KEYS = ("id", "theme", "source", "report", "checks", "excluded", "basis")
CHECK_KEYS = ("ask", "given", "expect")
EXPECT_KEYS = ("verdict", "rules", "values", "says", "silent_on")


@dataclass
class Result:
    """How one case came out."""

    id: str
    theme: str
    agrees: bool = True
    excluded: str = ""
    misses: list[str] = field(default_factory=list)


def read_cases(folder: Path) -> list[Mapping[str, Any]]:
    """Return every case of the folder's YAML files, checked against the format."""
    files = sorted(folder.glob("*.yaml")) if folder.is_dir() else [folder]
    cases: list[Mapping[str, Any]] = []
    problems: list[Problem] = []
    for file in files:
        values = parse_yaml(read_text(file, "case file"), source=str(file))
        for number, case in enumerate(values if isinstance(values, list) else [values]):
            where = f"{file.name}[{number}]"
            problems.extend(_shape_problems(case, where))
            if isinstance(case, dict):
                cases.append(case)
    seen: set[str] = set()
    for case in cases:
        if str(case.get("id")) in seen:
            problems.append(Problem(path=str(case.get("id")), message="id used twice"))
        seen.add(str(case.get("id")))
    if not files or not cases:
        problems.append(
            Problem(path=str(folder), message="no cases", valid="*.yaml files in the format of docs/cases.md")
        )
    if problems:
        raise SpecError(problems)
    return cases


def _shape_problems(case: object, where: str) -> list[Problem]:
    if not isinstance(case, dict):
        return [Problem(path=where, message="a case is a mapping", found=type(case).__name__)]
    problems = [
        Problem(path=f"{where}.{key}", message="unknown key", found=key, valid=did_you_mean(key, CASE_KEYS))
        for key in case
        if key not in CASE_KEYS
    ]
    problems += [Problem(path=f"{where}.{key}", message="missing") for key in ("id", "theme") if not case.get(key)]
    checks = case.get("checks")
    if case.get("excluded"):
        return problems
    if not isinstance(checks, list) or not checks:
        return [*problems, Problem(path=f"{where}.checks", message="a case needs checks, or a reason under excluded")]
    for number, check in enumerate(checks):
        path = f"{where}.checks[{number}]"
        if (
            not isinstance(check, dict)
            or not isinstance(check.get("given"), dict)
            or not isinstance(check.get("expect"), dict)
        ):
            problems.append(Problem(path=path, message="a check is a mapping with ask, given and expect"))
            continue
        if check.get("ask") not in ASKS:
            problems.append(
                Problem(
                    path=f"{path}.ask",
                    message="unknown ask",
                    found=str(check.get("ask")),
                    valid=", ".join(sorted(ASKS)),
                )
            )
        problems += [
            Problem(path=f"{path}.{key}", message="unknown key", found=key) for key in check if key not in CHECK_KEYS
        ]
        problems += [
            Problem(path=f"{path}.expect.{key}", message="unknown key", found=key, valid=", ".join(EXPECT_KEYS))
            for key in check["expect"]
            if key not in EXPECT_KEYS
        ]
        if not check["expect"]:
            problems.append(Problem(path=f"{path}.expect", message="expects nothing"))
    return problems


def run_case(case: Mapping[str, Any]) -> Result:
    """Ask every check of a case and compare."""
    result = Result(id=str(case["id"]), theme=str(case["theme"]), excluded=str(case.get("excluded") or ""))
    if result.excluded:
        return result
    for check in case["checks"]:
        try:
            answer = ask(check["ask"], check["given"])
        except Exception as error:  # a broken case or a defect of hetrl: a miss that says which, and the others go on
            result.misses.append(f"{check['ask']}: {type(error).__name__}: {error}")
            continue
        result.misses += [f"{check['ask']}: {miss}" for miss in compare(check["expect"], answer)]
    result.agrees = not result.misses
    return result


def compare(expect: Mapping[str, Any], answer: Answer) -> list[str]:
    """Return what differs between an expectation and an answer; `tight` counts as fits."""
    misses = []
    if "verdict" in expect:
        wanted, got = str(expect["verdict"]), answer.verdict
        same = got == wanted or (wanted in ("fits", "accept") and got in ("fits", "tight", "accept", "warn"))
        if wanted == "tight":
            same = got == "tight"
        if wanted == "reject":
            same = got in ("reject", "does_not_fit")
        if not same:
            misses.append(f"verdict {got}, expected {wanted}: {answer.text.strip()[:200]}")
    misses += [
        f"rule {rule} not reported (got {', '.join(answer.rules) or 'none'})"
        for rule in expect.get("rules", ())
        if rule not in answer.rules
    ]
    for name, wanted in expect.get("values", {}).items():
        if name not in answer.values:
            misses.append(f"no value {name}; there are {', '.join(sorted(answer.values))}")
        elif not matches(wanted, answer.values[name]):
            misses.append(f"{name} is {answer.values[name]!r}, expected {wanted!r}")
    said = answer.text.casefold()
    misses += [
        f"does not say {words!r}: {answer.text.strip()[:200]}"
        for words in expect.get("says", ())
        if str(words).casefold() not in said
    ]
    misses += [f"says {words!r}" for words in expect.get("silent_on", ()) if str(words).casefold() in said]
    return misses


def matches(wanted: Any, got: Any) -> bool:
    """Whether a value is as wanted: equal, within ``{value, within}`` (relative), or inside ``{min, max}``."""
    if isinstance(wanted, dict) and set(wanted) <= {"value", "within", "min", "max", "includes"}:
        if "includes" in wanted:
            return all(item in got for item in wanted["includes"])
        if not isinstance(got, (int, float)):
            return False
        ok = True
        if "value" in wanted:
            ok = abs(got - wanted["value"]) <= wanted.get("within", 0.0) * abs(wanted["value"])
        return ok and wanted.get("min", got) <= got <= wanted.get("max", got)
    if isinstance(wanted, float) or isinstance(got, float):
        return (
            isinstance(wanted, (int, float))
            and isinstance(got, (int, float))
            and abs(got - wanted) <= 1e-9 * max(1.0, abs(wanted))
        )
    return bool(wanted == got)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return agreement by theme as fractions, with counts and the misses."""
    themes: dict[str, list[Result]] = {}
    for result in results:
        themes.setdefault(result.theme, []).append(result)
    asked = {theme: [r for r in members if not r.excluded] for theme, members in themes.items()}
    return {
        "agreement_by_theme": {
            theme: sum(r.agrees for r in members) / len(members) for theme, members in asked.items() if members
        },
        "cases_by_theme": {theme: len(members) for theme, members in asked.items()},
        "num_cases": len(results),
        "num_asked": sum(map(len, asked.values())),
        "excluded": {r.id: r.excluded for r in results if r.excluded},
        "misses": {r.id: r.misses for r in results if r.misses},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases of a folder and print agreement by theme."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="folder of case files (default: tests/cases)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    args = parser.parse_args(argv)
    started = time.perf_counter()
    try:
        results = [run_case(case) for case in read_cases(args.dir)]
    except HetrlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    found = summary(results)
    for theme, share in found["agreement_by_theme"].items():
        print(f"{theme:<18} {share:>7.1%}  of {found['cases_by_theme'][theme]}")
    print(f"{found['num_asked']} of {found['num_cases']} cases asked in {time.perf_counter() - started:.1f} s")
    for name, reason in found["excluded"].items():
        print(f"excluded {name}: {reason}")
    for name, misses in found["misses"].items():
        for miss in misses:
            print(f"miss {name}: {miss}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if not found["misses"] else 1


if __name__ == "__main__":
    sys.exit(main())
