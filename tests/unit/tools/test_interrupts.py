"""Signals at any moment of a command: a plan written whole, or none and the old one untouched."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hetrl.search.halving import Halving
from hetrl.tools import plan
from tests.helpers.jobs import TWO_NODES


def planned(folder: Path) -> int:
    (folder / "job.yaml").write_text(TWO_NODES)
    return plan.main(["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--budget", "20"])


def test_sigterm_ends_a_search_with_its_best_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, polish = signal.getsignal(signal.SIGTERM), Halving.polish

    def terminated(search: Halving, *args: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return polish(search, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Halving, "polish", terminated)
    assert planned(tmp_path) == 0
    assert "interrupted; this is the best plan" in capsys.readouterr().out
    assert json.loads((tmp_path / "plan.json").read_text())["search"]["interrupted"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_plan_that_is_found_is_written(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document_of = plan.document_of

    def disturbed(*args: object, **more: object) -> object:
        os.kill(os.getpid(), number)
        return document_of(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "document_of", disturbed)
    assert planned(tmp_path) == 0
    assert not json.loads((tmp_path / "plan.json").read_text())["search"]["interrupted"]


def test_without_a_plan_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Halving, "start", terminated)
    (tmp_path / "plan.json").write_text("of yesterday")
    assert planned(tmp_path) == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")
    assert (tmp_path / "plan.json").read_text() == "of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "plan.json"]
