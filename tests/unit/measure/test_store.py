"""The append-only measurement store."""

import json
from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.measure import MeasurementStore, load_measurements


def test_records_come_back_as_written(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "run" / "measurements.jsonl", labels={"run": "a"})
    written = store.record(
        "generate",
        "cpu-fast",
        amounts={"num_sequences": 8, "num_tokens": 256},
        measured={"seconds": 0.5},
        predicted={"seconds": 0.25},
        labels={"replica": "0"},
    )
    (read,) = load_measurements(store.path)
    assert read == written
    assert read.seconds == 0.5
    assert read.labels == {"run": "a", "replica": "0"}
    assert read.machine.num_cores >= 1


def test_a_second_store_appends_and_keeps_every_earlier_byte(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    MeasurementStore(path).record("a", "cpu", amounts={}, measured={"seconds": 1})
    before = path.read_bytes()
    MeasurementStore(path).record("b", "cpu", amounts={}, measured={"seconds": 2})
    assert path.read_bytes().startswith(before)
    assert [each.kind for each in load_measurements(path)] == ["a", "b"]


@pytest.mark.parametrize("measured", [{}, {"seconds": float("nan")}, {"seconds": -1.0}])
def test_nothing_measured_or_nonsense_is_refused(tmp_path: Path, measured: dict[str, float]) -> None:
    store = MeasurementStore(tmp_path / "measurements.jsonl")
    with pytest.raises(ValueError):
        store.record("generate", "cpu", amounts={}, measured=measured)
    assert not store.path.exists()


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    MeasurementStore(path).record("a", "cpu", amounts={}, measured={"seconds": 1})
    good = json.loads(path.read_text())
    bad = [good | {"schema_version": 2}, good | {"amounts": {"num_tokens": "many"}}, good | {"surprise": 1}]
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in bad)
        file.write('{"kind": "cut of')
    with pytest.raises(SpecError) as caught:
        load_measurements(path)
    where = [problem.path.removeprefix(str(path)) for problem in caught.value.problems]
    assert where == [":2.schema_version", ":3", ":4.surprise", ":5"]
