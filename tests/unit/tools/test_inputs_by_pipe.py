"""What the user names is read if it can be read: files, pipes and stdin; what a file names must be a file."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.spec.load import load_job
from hetrl.spec.yaml_text import read_text
from hetrl.tools import plan, validate
from tests.helpers.jobs import TWO_NODES

FIRST_LINE = "root:x:0:0:secret:/root:/bin/sh"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_job_comes_through_a_pipe(fifo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = threading.Thread(target=fifo.write_text, args=(TWO_NODES,))
    writer.start()
    assert validate.main([str(fifo)]) == 0
    writer.join()
    assert capsys.readouterr().out.endswith("job: valid\n")


def test_a_job_comes_from_stdin_and_gives_the_plan_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(TWO_NODES)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TWO_NODES.encode())))
    for name, config in (("a.json", "job.yaml"), ("b.json", "-")):
        assert plan.main(["--config", config, "--out", name, "--budget", "20", "--quiet"]) == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    assert json.loads(Path("b.json").read_text())["config_folder"] == "."


@pytest.mark.parametrize("command", [validate.main, lambda words: plan.main(["--config", *words])])
def test_a_folder_is_called_one(command: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([str(tmp_path)]) == 2  # type: ignore[operator]
    assert "a folder, not a job file" in capsys.readouterr().err


def test_a_pipe_has_the_size_bound_of_a_file(fifo: Path) -> None:
    def write() -> None:
        with fifo.open("wb") as stream:
            stream.write(b"x" * 101)

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(SpecError, match="too large"):
        read_text(fifo, max_bytes=100, pipes=True)
    writer.join()


def test_what_a_file_names_is_no_pipe_that_waits_for_ever(fifo: Path) -> None:
    with pytest.raises(SpecError, match="not a regular links file"):
        load_job(TWO_NODES, {"cluster_topology.links_file": str(fifo)})


@pytest.mark.parametrize(
    "text",
    [
        f"{FIRST_LINE}\n",
        f"from,to,bytes_per_second,latency_seconds\nfast,{FIRST_LINE},1,1\n",
        f"from,to,bytes_per_second,latency_seconds\n{FIRST_LINE},{FIRST_LINE},1,1\n",
        f"from,to,bytes_per_second,latency_seconds\nfast,slow,{FIRST_LINE},1\n",
    ],
)
def test_a_referenced_file_is_not_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text(text)
    with pytest.raises(SpecError, match=r"links_file line [12]") as caught:
        load_job(TWO_NODES, {"cluster_topology.links_file": str(tmp_path / "links.csv")})
    assert "secret" not in str(caught.value)
