"""A real SIGINT at any stage of the exact solver ends it with the best plan so far, and the plan says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.jobs import TWO_NODES

RUN = """
import importlib, os, signal, sys
from hetrl.tools.main import main

module, name = sys.argv[1].split(":")
owner = importlib.import_module(module)
*parts, last = name.split(".")
for part in parts:
    owner = getattr(owner, part)
original = getattr(owner, last)

def interrupted(*args, **more):
    setattr(owner, last, original)
    os.kill(os.getpid(), signal.SIGINT)
    return original(*args, **more)

setattr(owner, last, interrupted)
sys.exit(main(["plan", *sys.argv[2:]]))
"""
"""``hetrl plan`` that sends itself SIGINT where it first calls a function: at that stage, whatever the machine."""


def plan(folder: Path, stage: str, *more: str) -> dict[str, object]:
    (folder / "job.yaml").write_text(TWO_NODES.replace("max_search_seconds: 60", "max_search_seconds: 600"))
    arguments = ["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--quiet", *more]
    run = subprocess.run(
        [sys.executable, "-c", RUN, stage, "--solver", "ilp", *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    search: dict[str, object] = json.loads((folder / "plan.json").read_text())["search"]
    assert not search["stopped_by_time"]
    assert "Traceback" not in run.stderr
    return {**search, "said": run.stdout}


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        ("hetrl.search.halving:Halving.halve", "feasible"),  # the hybrid search for a start
        ("hetrl.search.exact.solver:screen_partition", "feasible"),
        ("hetrl.search.exact.solver:ColumnMaker.make", "feasible"),
        ("hetrl.search.exact.solver:improved", "optimal"),  # level 5 of what is proven by then
        ("hetrl.search.exact.solver:make_certificate", "optimal"),
    ],
)
def test_ctrl_c_ends_the_proof_with_the_best_plan_so_far(tmp_path: Path, stage: str, status: str) -> None:
    search = plan(tmp_path, stage)
    assert search["status"] == status
    assert search["interrupted"]
    assert "interrupted" in str(search["said"])
    assert search["certificate"] is None
    assert not (tmp_path / "plan.certificate.json").exists()


def test_ctrl_c_in_the_price_curve_keeps_the_proven_plan(tmp_path: Path) -> None:
    search = plan(tmp_path, "hetrl.search.exact.curve:point", "--objective", "usd_per_step")
    assert search["status"] == "optimal"
    assert "price_curve" not in search
