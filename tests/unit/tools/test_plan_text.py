"""What hetrl plan prints: figures fine enough, and what makes the plan again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hetrl.tools.main import main

JOBS = {
    "seconds": "{nodes: [{id: a, gpus: 8, type: H100}]}\nbatch: {num_prompts: 64}",
    "minutes": "{nodes: [{id: a, gpus: 2, type: L4}]}\nbatch: {num_prompts: 128}",
    "milliseconds": "{nodes: [{id: a, gpus: 2, type: H100}]}\n"
    "batch: {num_prompts: 1, responses_per_prompt: 2, num_mini_batches: 1, prompt_tokens: 8,\n"
    "  mean_response_tokens: 2, max_response_tokens: 4}",
}


@pytest.mark.parametrize("job", JOBS)
def test_starts_and_ends_agree_with_the_plan(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = "workflow: {algorithm: GRPO, actor_model: Qwen2.5-0.5B, reference_model: Qwen2.5-0.5B}\n"
    (tmp_path / "job.yaml").write_text(f"{workflow}cluster_topology: {JOBS[job]}\n")
    words = ["--config", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "plan.json"), "--budget", "30", "--quiet"]
    assert main(["plan", *words]) == 0
    said = capsys.readouterr().out
    prediction = json.loads((tmp_path / "plan.json").read_text())["prediction"]
    timeline = said.partition("timeline of one step")[2].partition("memory, fullest")[0]
    rows = [[cell.strip() for cell in re.split("[│|]", line)] for line in timeline.splitlines()[3:]]
    shown = {name: (float(start), float(end)) for name, _, start, end in (row for row in rows if len(row) == 4)}
    assert shown.keys() == prediction["schedule"].keys()
    for name, times in prediction["schedule"].items():
        exact = (times["start_seconds"], times["end_seconds"])
        assert shown[name] == pytest.approx(exact, abs=prediction["step_seconds"] / 1000)


def test_a_plan_says_what_makes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = "workflow: {algorithm: GRPO, actor_model: Qwen2.5-0.5B, reference_model: Qwen2.5-0.5B}\n"
    (tmp_path / "job.yaml").write_text(f"{workflow}cluster_topology: {JOBS['seconds']}\n")
    words = ["plan", "--config", str(tmp_path / "job.yaml"), "--quiet", "--seed", "3"]
    assert main([*words, "--out", str(tmp_path / "first.json")]) == 0
    made = json.loads((tmp_path / "first.json").read_text())["search"]
    again = ["--seed", str(made["seed"]), "--budget", str(made["budget"]), "--out", str(tmp_path / "again.json")]
    assert main([*words, *again]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["search"] == made
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("nothing written: --out FILE keeps the plan\n")
