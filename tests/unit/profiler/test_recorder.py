"""The recorder: blocks are stored, stored points are not measured again, impossible ones are dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetrl.measure import load_measurements
from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.points import Point
from hetrl_profiler.progress import Progress
from hetrl_profiler.recorder import Recorder

DEVICE = ProfiledDevice(
    name="core", kind="cpu", dtype="fp32", max_flops_per_second=1e11, max_bytes_per_second=1e11,
    last_level_cache_bytes=2**20,
)  # fmt: skip


class Counted:
    """A point whose preparations are counted."""

    def __init__(self, size: int, least_seconds: float = 0.0) -> None:
        self.num_prepared = 0
        self.point = Point(
            kind="sum", amounts={"size": size}, prepare=self._prepare, least_seconds=least_seconds,
            results=lambda: {"num_iterations": 3.0},
        )  # fmt: skip

    def _prepare(self):  # type: ignore[no-untyped-def]
        self.num_prepared += 1
        return lambda _: sum(range(int(self.point.amounts["size"])))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "measurements.jsonl"


def recorder(out: Path) -> Recorder:
    return Recorder(out, DEVICE, Progress("core", quiet=True), {})


def test_what_is_stored_is_not_measured_again(out: Path) -> None:
    small, large = Counted(100), Counted(20_000)
    recorder(out).run([small.point], point_seconds=0.01)
    again = recorder(out)
    assert again.is_done(small.point) and not again.is_done(large.point)
    again.run([small.point, large.point], point_seconds=0.01)
    assert (small.num_prepared, large.num_prepared) == (1, 1)
    found = load_measurements(out)
    assert [each.amounts for each in found] == [
        {"size": 100, "num_iterations": 3.0},
        {"size": 20_000, "num_iterations": 3.0},
    ]
    for each in found:
        assert each.device_type == "core" and each.labels["dtype"] == "fp32"
        assert each.seconds == pytest.approx(each.measured["busy_seconds"] * each.measured["slowdown"])
        assert each.machine.num_cores >= 1 and each.date.startswith("20")
    assert found[1].seconds > 20 * found[0].seconds


def test_another_device_starts_from_nothing(out: Path) -> None:
    first = Counted(100)
    recorder(out).run([first.point], point_seconds=0.01)
    other = ProfiledDevice(**{**{name: getattr(DEVICE, name) for name in DEVICE.__dataclass_fields__}, "name": "other"})
    assert not Recorder(out, other, Progress("other", quiet=True), {}).is_done(first.point)


def test_faster_than_physics_is_dropped_and_named(out: Path) -> None:
    cheat = Counted(100, least_seconds=60.0)
    found = recorder(out)
    found.run([cheat.point], point_seconds=0.01)
    assert found.stored == [] and len(found.impossible) == 1
    assert "sum:size=100" in found.impossible[0]


def test_ctrl_c_costs_only_the_point_that_is_being_measured(out: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    points = [Counted(100), Counted(200)]
    pressed = Point(kind="sum", amounts={"size": 300}, prepare=lambda: interrupt)
    found = recorder(out)
    with pytest.raises(KeyboardInterrupt):
        found.run([*(each.point for each in points), pressed, Counted(400).point], point_seconds=0.01)
    assert [each.amounts["size"] for each in load_measurements(out)] == [100, 200]
    assert not found.is_done(pressed)


def test_used_time_ends_a_stage_and_the_rest_can_follow(out: Path) -> None:
    points = [Counted(300_000 + size) for size in range(40)]
    found = recorder(out)
    found.run([each.point for each in points], point_seconds=0.01, total_seconds=0.05)
    done = len(found.stored)
    assert 1 <= done < 40
    later = recorder(out)
    later.run([each.point for each in points[: done + 1]], point_seconds=0.01)
    assert len(load_measurements(out)) == done + 1
