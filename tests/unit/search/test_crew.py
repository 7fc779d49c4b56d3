"""Lanes: results in order, the same bits wherever they are worked out, and no lane left behind."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.beside import Beside
from hetrl.search.chains import Start, cost_start
from hetrl.search.constraints import NodeRules
from hetrl.search.context import SearchContext
from hetrl.search.crew import Alone, Crew
from hetrl.search.halving import Halving, never
from hetrl.search.hybrid import solve
from hetrl.search.process_crew import Processes
from hetrl.search.result import SearchResult
from hetrl.spec.load import load_job
from hetrl.spec.presets import benchmark_instance
from hetrl.tools.main import main
from hetrl.tools.plan import document_of


def rules_of(name: str = "guideC/Llama-3-8B/PPO") -> NodeRules:
    job = benchmark_instance(name)
    return NodeRules(SearchContext(job, UnitCosts(CostModel.builtin(), job.precision)))


def starts_of(rules: NodeRules) -> list[Start]:
    context = rules.context
    tasks = tuple(range(len(context.job.workflow.tasks)))
    counts = itertools.product(range(0, 9, 4), repeat=2)
    return [Start(grouping=(tasks,), assignment=(context.counts(each),), cutoff=1e30) for each in counts if any(each)]


def costs(crew: Crew, starts: list[Start]) -> list[float]:
    with crew:
        found = crew.map(cost_start, starts, list(range(len(starts))), never)
    return [each.cost for each in found if each is not None]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_lanes_give_the_same_costs_in_the_same_order(start_method: str) -> None:
    starts = starts_of(rules_of())
    alone = costs(Alone(rules_of()), starts)
    assert len(alone) == len(starts) == 8
    crew = Processes(2, rules_of(), start_method)
    assert costs(crew, starts) == alone
    assert crew.work["assignments_costed"] == len(starts)
    assert multiprocessing.active_children() == []


def fail_on_odd(rules: NodeRules, item: int) -> int:
    if item % 2:
        raise ValueError(f"item {item}")
    return item


def interrupt_parent(rules: NodeRules, item: int) -> int:
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
    return item


def test_what_goes_wrong_in_a_lane_is_raised_here() -> None:
    with Processes(2, rules_of()) as crew, pytest.raises(ValueError, match="item 1"):
        crew.map(fail_on_odd, [0, 1, 2], [0, 1, 2], never)
    assert multiprocessing.active_children() == []


@pytest.fixture
def listening() -> Iterator[None]:
    """Hear Ctrl-C also where the shell started the tests in the background, with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_ctrl_c_leaves_no_lane_behind() -> None:
    with pytest.raises(KeyboardInterrupt), Processes(1, rules_of()) as crew:
        crew.map(interrupt_parent, [0], [0], never)
    assert multiprocessing.active_children() == []


def die_in(rules: NodeRules, item: tuple[int, int]) -> int:
    """End the process, unless it is the one that started the search."""
    number, searcher = item
    if os.getpid() != searcher:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_on_first(rules: NodeRules, item: tuple[int, int]) -> int:
    return die_in(rules, item) if item[0] == 0 else item[0]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize(("work", "lost"), [(die_on_first, {1, 2}), (die_in, {2})])
def test_others_do_what_a_killed_lane_leaves_behind(
    start_method: str, work: Callable[[NodeRules, tuple[int, int]], int], lost: set[int]
) -> None:
    """And this process, where none is left."""
    items = [(number, os.getpid()) for number in range(5)]
    with Processes(2, rules_of(), start_method) as crew:
        assert crew.map(work, items, list(range(5)), never) == list(range(5))
        assert crew.work["lanes_lost"] in lost
        assert crew.map(work, items[1:], list(range(4)), never) == [1, 2, 3, 4]
    assert multiprocessing.active_children() == []


def test_a_lane_killed_between_two_rounds_is_not_missed() -> None:
    starts = starts_of(rules_of())
    alone = costs(Alone(rules_of()), starts)
    crew = Processes(2, rules_of())
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    assert costs(crew, starts) == alone
    assert crew.work["lanes_lost"] == 2


def interrupted_in(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, calls: int) -> None:
    """Ctrl-C in one of the first calls of a function."""
    function, done = getattr(owner, name), itertools.count()

    def call(*args: object, **more: object) -> object:
        if next(done) < calls:
            raise KeyboardInterrupt
        return function(*args, **more)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Halving, "descend"), (Halving, "polish"), (Halving, "exact"), (Halving, "placed"), (Beside, "result")],
)
def test_ctrl_c_at_any_stage_gives_the_best_plan_so_far(
    owner: object, name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_in(monkeypatch, owner, name, 1)
    result = search(threads, budget=60)
    assert result.interrupted
    assert result.estimate.feasible
    assert 0 <= result.lower_bound <= result.estimate.step_seconds
    assert (result.lower_bound == 0) == (name == "result")
    assert multiprocessing.active_children() == []


def test_a_second_ctrl_c_ends_the_search_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_in(monkeypatch, Halving, "placed", 2)
    with pytest.raises(KeyboardInterrupt):
        search(2, budget=60)
    assert multiprocessing.active_children() == []


def test_nothing_begins_once_the_time_is_over() -> None:
    with Processes(2, rules_of()) as crew:
        assert crew.map(fail_on_odd, [0, 2], [0, 2], lambda: True) == [None, None]


def search(threads: int, **optimizer: object) -> SearchResult:
    overrides = {f"optimizer.{key}": value for key, value in optimizer.items()}
    job = benchmark_instance("guideC/Llama-3-8B/PPO", overrides)
    return solve(job, UnitCosts(CostModel.builtin(), job.precision), threads=threads)


def test_an_interrupted_search_in_lanes_returns_its_best_plan() -> None:
    def interrupt(stage: str, best: float) -> None:
        raise KeyboardInterrupt

    job = benchmark_instance("guideC/Llama-3-8B/PPO", {"optimizer.budget": 300})
    result = solve(job, UnitCosts(CostModel.builtin(), job.precision), threads=2, progress=interrupt)
    assert result.interrupted
    assert result.estimate.feasible
    assert multiprocessing.active_children() == []


def test_a_time_limit_of_nothing_still_gives_a_plan_in_lanes() -> None:
    result = search(2, max_search_seconds=0.01)
    assert result.stopped_by_time
    assert result.estimate.feasible


def test_same_seed_and_budget_give_the_same_plan_whatever_the_lanes() -> None:
    results = [search(threads, seed=7, budget=600) for threads in (1, 1, 2, 3)]
    assert all(each.plan == results[0].plan for each in results)
    assert all(each.counts == results[0].counts for each in results)


def test_plan_json_has_the_same_bytes_from_python_and_from_commands_whatever_the_lanes(
    repository: Path, tmp_path: Path
) -> None:
    config = repository / "configs" / "rlhf_70b.yaml"
    outs = [tmp_path / f"plan{number}.json" for number in range(4)]
    arguments = ["--config", str(config), "--budget", "300", "--seed", "3", "--quiet"]
    assert main(["plan", *arguments, "--out", str(outs[0])]) == 0
    assert main(["plan", *arguments, "--out", str(outs[1]), "--threads", "2"]) == 0
    command = [sys.executable, "-m", "hetrl.tools.plan", *arguments, "--out", str(outs[2]), "--threads", "2"]
    subprocess.run(command, check=True, capture_output=True)
    model = CostModel.builtin()
    job = model.with_links(load_job(config, overrides={"optimizer.seed": 3, "optimizer.budget": 300}))
    costs = UnitCosts(model, job.precision)
    folder = os.path.relpath(config.parent, tmp_path)
    document_of(job, solve(job, costs), costs, config_folder=folder).write(outs[3])
    assert len({out.read_bytes() for out in outs}) == 1
    timings = json.loads((tmp_path / "plan2.timings.json").read_text())
    assert timings["threads"] == 2
    assert set(timings["stages"]) == {"read", "search", "report"}
    assert timings["work"]["options_costed"] > 0


@pytest.mark.parametrize("wrong", ["-1", "two", "1025"])
def test_a_wrong_number_of_lanes_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "job.yaml", "--threads", wrong]) == 2
    assert "a number of processes up to 1024, or 0 for one per core" in capsys.readouterr().err
