"""The reports of tests/cases: every row is there, and hetrl's answer is the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.case_asks import Answer
from benchmarks.cases import DEFAULT_DIR, compare, main, matches, read_cases, run_case
from hetrl.errors import SpecError

CASES = read_cases(DEFAULT_DIR)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_the_right_answer(case: dict[str, object]) -> None:
    result = run_case(case)
    assert result.agrees, result.misses


def test_every_row_is_listed_and_few_are_excluded() -> None:
    assert len(CASES) == 103
    assert sum(bool(case.get("excluded")) for case in CASES) <= 10


def test_a_wrong_expectation_is_a_miss() -> None:
    answer = Answer(verdict="reject", rules=("TP_HEADS",), values={"degrees": [1, 2]}, text="Tensor degree 1, 2")
    assert (
        compare({"verdict": "reject", "rules": ["TP_HEADS"], "values": {"degrees": [1, 2]}, "says": ["tensor"]}, answer)
        == []
    )
    assert (
        len(
            compare(
                {"verdict": "accept", "rules": ["PP_SPLIT"], "values": {"degrees": [1], "other": 1}, "says": ["x"]},
                answer,
            )
        )
        == 5
    )


def test_tight_counts_as_fits() -> None:
    assert compare({"verdict": "fits"}, Answer(verdict="tight")) == []
    assert compare({"verdict": "tight"}, Answer(verdict="fits")) != []
    assert compare({"verdict": "fits"}, Answer(verdict="does_not_fit")) != []


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        (1, 1, True),
        (1, 2, False),
        ([1], [1], True),
        (1.0, 1.0 + 1e-12, True),
        ({"value": 100, "within": 0.01}, 100.9, True),
        ({"value": 100, "within": 0.01}, 101.1, False),
        ({"min": 1, "max": 2}, 3, False),
        ({"includes": [1]}, [2, 1], True),
        (True, 1.0, True),
        ("a", 1.0, False),
    ],
)
def test_matching_values(wanted: object, got: object, same: bool) -> None:
    assert matches(wanted, got) is same


def test_a_folder_without_cases_and_a_broken_case_are_input_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--dir", str(tmp_path)]) == 2
    (tmp_path / "a.yaml").write_text(
        "- {id: x, theme: t, checks: [{ask: nothing, given: {}, expect: {verdict: accept}}]}\n"
    )
    with pytest.raises(SpecError, match="unknown ask"):
        read_cases(tmp_path)


def test_a_disagreement_exits_with_one(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "- id: x\n  theme: t\n"
        "  checks: [{ask: pipeline, given: {num_layers: 4, num_stages: 2}, expect: {verdict: reject}}]\n"
    )
    assert main(["--dir", str(tmp_path), "--json", str(tmp_path / "out.json")]) == 1
    assert '"t": 0.0' in (tmp_path / "out.json").read_text()
