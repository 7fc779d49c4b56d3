"""plan.json after somebody changed it: what it is computed from decides, and whoever reads it says so."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetrl.errors import SpecError
from hetrl.plan.document import document_from_json, read_plan
from hetrl.tools import explain, launch, memory, plan, validate
from tests.helpers.jobs import TWO_NODES


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "job.yaml").write_text(TWO_NODES)
    arguments = ["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--budget", "20", "--quiet"]
    assert plan.main(arguments) == 0
    return dict(json.loads((folder / "plan.json").read_text()))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything that is no mapping or list; of a list or of entries with ids for names, only the first."""
    if isinstance(value, dict) and value:
        keys = [key for key in value if not key.isdecimal()] or list(value)[:1]
        for key in keys:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], (*path, 0))
    else:
        yield path


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result: Any = copy.deepcopy(document)
    *way, last = path
    place = result
    for key in way:
        place = place[key]
    place[last] = value
    return dict(result)


def answer(
    main: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    capsys.readouterr()
    code = main(arguments)
    return code, capsys.readouterr().err


def test_no_figure_of_the_prediction_may_be_text(document: dict[str, Any]) -> None:
    prediction = document["prediction"]
    paths = list(leaves(prediction))
    assert len(paths) > 30
    for path in paths:
        value = prediction
        for key in path:
            value = value[key]
        if isinstance(value, (int, float)):
            with pytest.raises(SpecError, match="PLAN_SCHEMA"):
                document_from_json(changed(document, ("prediction", *path), "x"), "plan.json")


@pytest.mark.parametrize(
    "path",
    [
        ("memory",),
        ("memory", "devices"),
        ("memory", "hosts"),
        ("tasks",),
        ("transfers",),
        ("schedule",),
        ("idle_share",),
    ],
)
def test_no_table_of_the_prediction_may_be_text(path: tuple[str, ...], document: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="PLAN_SCHEMA"):
        document_from_json(changed(document, ("prediction", *path), "x"), "plan.json")


@pytest.mark.parametrize("figure", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_figure_is_a_finite_number(figure: str, document: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(changed(document, ("prediction", "step_seconds"), "FIGURE")).replace('"FIGURE"', figure)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SpecError, match="no number of JSON"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("devices", 0, "type"), "B200"),
        (("devices", 0, "node"), "../../etc"),
        (("devices", 0, "local_index"), 3),
        (("tasks", 0, "role"), "critic"),
        (("tasks", 0, "model"), "Qwen3-8B"),
        (("tasks", 0, "kind"), "score"),
    ],
)
@pytest.mark.parametrize("command", [validate, memory, explain, launch])
def test_a_description_of_another_job_is_refused(
    command: Any, path: tuple[Any, ...], value: Any, document: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(changed(document, path, value)))
    code, said = answer(command.main, ["--plan", str(file)] if command is launch else [str(file)], capsys)
    assert code == 2
    assert f"{path[0]}[{path[1]}].{path[2]}: not what the plan's config says (found: {value})" in said


def test_a_device_table_lists_every_device_once(document: dict[str, Any], tmp_path: Path) -> None:
    for devices in (document["devices"][:-1], [*document["devices"], document["devices"][0]]):
        (tmp_path / "plan.json").write_text(json.dumps({**document, "devices": devices}))
        assert validate.main([str(tmp_path / "plan.json")]) == 2


def test_another_step_is_noted(document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another cost model may be the cause, so it is no mistake."""
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert answer(validate.main, [str(tmp_path / "plan.json")], capsys) == (0, "")
    (tmp_path / "plan.json").write_text(json.dumps(changed(document, ("prediction", "step_seconds"), 1.0)))
    code, said = answer(validate.main, [str(tmp_path / "plan.json")], capsys)
    assert code == 0
    assert said.startswith(f"note: {tmp_path / 'plan.json'} predicts 1 s, with the cost model built-in; here it is ")


REFUSED = {
    "pin": ("{pin: {actor_train: [fast]}}", "pin: the exact solver knows no", "(found: {actor_train: [fast]})"),
    "forbid": ("{forbid: {actor_train: slow}}", "forbid: the exact solver knows no", "(found: {actor_train: [slow]})"),
    "keep_layout": ("{keep_layout: [actor_train]}", "keep_layout: the exact solver", "(found: [actor_train])"),
}


@pytest.mark.parametrize("key", REFUSED)
@pytest.mark.parametrize("command", [validate, plan])
def test_what_the_solver_does_not_know_is_refused_by_all_in_the_words_of_the_file(
    command: Any, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, *expected = REFUSED[key]
    job = tmp_path / "job.yaml"
    job.write_text(TWO_NODES.replace("solver: hybrid", f"solver: ilp, constraints: {text}"))
    code, said = answer(command.main, [str(job)] if command is validate else ["--config", str(job)], capsys)
    assert code == 2
    assert all(each in said for each in expected), said
    assert "Constraints(" not in said


def test_a_layout_to_keep_needs_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(TWO_NODES.replace("solver: hybrid", "constraints: {keep_layout: [actor_train]}"))
    assert validate.main([str(job)]) == 0
    assert "warning: optimizer.constraints.keep_layout: " in capsys.readouterr().out
    assert validate.main([str(job), "--strict"]) == 2
