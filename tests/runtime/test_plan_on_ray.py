"""The search on a real local Ray: the same chains, the same plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetrl.tools.main import main

pytestmark = pytest.mark.runtime


def test_lanes_on_ray_write_the_same_plan(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    written = []
    for name, how in (("alone", []), ("ray", ["--ray", "--threads", "2"])):
        out = tmp_path / f"{name}.json"
        arguments = ["--config", str(repository / "configs" / "rlhf_70b.yaml"), "--budget", "100", "--quiet"]
        assert main(["plan", *arguments, "--out", str(out), *how]) == 0
        written.append(out.read_bytes())
    assert written[0] == written[1]
