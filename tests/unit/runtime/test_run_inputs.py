"""Prompts, reward functions, settings and checkpoints: what a user may get wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.errors import RunError, SpecError
from hetrl.runtime.checkpoint import RunState, latest_checkpoint, read_state, whole_folder, write_state
from hetrl.runtime.data import load_prompts, load_reward, reward_of
from hetrl.runtime.limits import resolve_run
from hetrl.spec.job import RunSettings
from hetrl.spec.load import load_job
from tests.helpers.demo import DEMO


def test_prompts_keep_what_the_reward_needs(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": 2}\n\n{"prompt": "2+2="}\n')
    assert load_prompts(path) == ({"prompt": "1+1=", "answer": 2}, {"prompt": "2+2="})


def test_every_bad_prompt_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n{"text": "no"}\n{"prompt": ""}\nnot json\n[1]\n')
    with pytest.raises(SpecError) as caught:
        load_prompts(path)
    assert [problem.path.removeprefix(str(path)) for problem in caught.value.problems] == [":2", ":3", ":4", ":5"]


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_missing_or_empty_prompts_are_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SpecError, match=r"run\.prompts"):
        load_prompts(path)


def test_reward_from_a_file_and_from_a_module() -> None:
    from_file = load_reward(f"{DEMO / 'reward.py'}:lower_case")
    assert reward_of(from_file, {"prompt": ""}, "abCD") == 0.5
    assert reward_of(from_file, {"prompt": ""}, "") == 0.0
    assert load_reward("operator:eq")({"prompt": "x"}, "y") is False  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("name", ["nocolon", "nowhere_at_all:f", "operator:nothing", "missing.py:f", "operator:", ":f"])
def test_what_is_no_reward_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"run\.reward"):
        load_reward(name)


@pytest.mark.parametrize("result", [float("nan"), float("inf"), None, "much"])
def test_a_reward_that_is_no_number_ends_the_run(result: object) -> None:
    with pytest.raises(RunError, match="reward function"):
        reward_of(lambda prompt, response: result, {"prompt": ""}, "")  # type: ignore[arg-type, return-value]


def test_paths_are_tried_against_the_configuration_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = load_job(DEMO / "job.yaml", {"workflow.actor_model": "Llama-3-8B", "workflow.reference_model": "Llama-3-8B"})
    assert job.run is not None
    monkeypatch.chdir(tmp_path)
    run = resolve_run(job.run, job, DEMO)
    assert run.prompts == str(DEMO / "prompts.jsonl")
    assert run.reward == f"{DEMO / 'reward.py'}:lower_case"
    assert run.actor_path == ""  # the workflow names a hub model, which is no folder
    assert resolve_run(replace(run, reward="package.module:f"), job, DEMO).reward == "package.module:f"
    assert resolve_run(RunSettings(), job, DEMO) == RunSettings()


def test_a_checkpoint_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-000007"
    with pytest.raises(KeyboardInterrupt), whole_folder(folder) as unfinished:
        (unfinished / "weights").write_text("half")
        raise KeyboardInterrupt
    assert list((tmp_path / "checkpoints").iterdir()) == []
    with whole_folder(folder) as unfinished:
        write_state(unfinished, RunState(num_steps_done=7, seed=3))
        assert not folder.exists()
    assert read_state(folder) == RunState(num_steps_done=7, seed=3)


def test_the_latest_checkpoint_is_that_of_most_steps(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    for name in ("step-000009", "step-000010", ".step-000011.unfinished-1", "step-notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.name == "step-000010"


@pytest.mark.parametrize("content", ["", "{}", '{"num_steps_done": "many", "seed": 1}'])
def test_a_state_file_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(SpecError, match=r"state\.json"):
        read_state(tmp_path)
