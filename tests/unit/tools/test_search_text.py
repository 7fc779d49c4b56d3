"""Everything that a search counts is said in words."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.context import SearchContext
from hetrl.search.exact.solver import Prover
from hetrl.search.halving import Halving
from hetrl.search.result import SearchResult
from hetrl.search.solvers import solve
from hetrl.spec.presets import benchmark_instance
from hetrl.tools.search_text import COUNTS, CUTS, search_lines


@pytest.fixture(scope="module", params=["hybrid", "ilp"])
def result(request: pytest.FixtureRequest) -> SearchResult:
    job = benchmark_instance("guideC/Llama-3-8B/DPO", {"optimizer.budget": 60, "optimizer.solver": request.param})
    return solve(job, UnitCosts(CostModel.builtin(), job.precision))


def test_every_count_of_a_search_has_words(result: SearchResult) -> None:
    counted = {name for name in result.counts | result.work if not name.startswith("cut_")}
    assert counted - COUNTS.keys() == set()


def test_every_count_that_the_search_can_give_has_words(repository: Path) -> None:
    """Also those that only some jobs have, such as overflows."""
    sources = [path.read_text() for path in sorted((repository / "hetrl" / "search" / "exact").glob("*.py"))]
    given = {name for source in sources for name in re.findall(r'self\.count(?:\(|s\[)"(\w+)"', source)}
    for function in (Halving.counts, SearchContext.work, Prover.result):
        given |= set(re.findall(r'"(\w+)":', inspect.getsource(function)))
    assert {"moves", "options_costed", "column_overflows", "placements_evaluated", "partitions_screened"} <= given
    assert given == COUNTS.keys()


def test_every_reason_that_the_kernels_give_has_words(repository: Path) -> None:
    sources = [path.read_text() for path in sorted((repository / "kernels" / "hetrl_kernels").glob("*.pyx"))]
    given = {
        reason
        for source in sources
        for call in re.findall(r"\.cut\((.*)|\.cuts\[(.*?)\] =", source)
        for reason in re.findall(r'"([A-Z_]+)"', "".join(call))
    }
    assert {"DEVICE_MEMORY", "BOUND", "SLOW_LAYOUT", "FRONT_OVERFLOW"} <= given
    assert given == CUTS.keys()


def test_the_lines_hold_every_count_and_the_cuts_by_reason(result: SearchResult) -> None:
    said = "\n".join(search_lines(result))
    words = COUNTS | {f"cut_{reason}": each for reason, each in CUTS.items()}
    for name, number in (result.counts | result.work).items():
        assert not number or f"{number:,} {words[name]}" in said
    stopped = search_lines(replace(result, stopped_by_time=True, interrupted=True))
    assert "time limit" in stopped[-2] and "interrupted" in stopped[-1]


def test_the_page_on_the_search_explains_every_count_and_reason(repository: Path) -> None:
    page = (repository / "docs" / "search.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert (COUNTS.keys() | CUTS.keys()) - explained == set()
    words = {row.strip() for row in rows}
    assert {"grouping", "assignment", "layout", "variant", "option", "move", "Pareto front", "column"} <= words
