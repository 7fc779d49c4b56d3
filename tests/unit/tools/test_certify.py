"""``hetrl plan --solver ilp`` writes a certificate, and ``hetrl certify`` refuses every corrupted one."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hetrl.files
from hetrl.cost.model import CostModel
from hetrl.search.exact.certificate_file import checksum
from hetrl.tools.main import main
from tests.helpers.jobs import TWO_NODES

Document = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an exact plan.json and its certificate."""
    folder = tmp_path_factory.mktemp("exact")
    (folder / "job.yaml").write_text(TWO_NODES.replace("max_search_seconds: 60", "max_search_seconds: 600"))
    arguments = ["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--quiet"]
    assert main(["plan", "--solver", "ilp", *arguments]) == 0
    return folder


def test_the_plan_says_that_it_is_proven_and_names_its_certificate(written: Path) -> None:
    search = json.loads((written / "plan.json").read_text())["search"]
    assert search["solver"] == "ilp"
    assert search["status"] == "optimal"
    assert search["gap"] <= 1e-9
    assert search["lower_bound"] == pytest.approx(search["objective_value"], rel=1e-9)
    assert "partitions" in search["declared_space"]
    assert (written / search["certificate"]).is_file()


@pytest.mark.parametrize("mip", ["cbc", "highs"])
def test_a_whole_certificate_holds(written: Path, mip: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", str(written / "plan.certificate.json"), "--mip", mip, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    document = json.loads((written / "plan.json").read_text())
    assert said["holds"]
    assert said["optimum_seconds"] == pytest.approx(document["search"]["objective_value"], rel=1e-9)
    assert document["prediction"]["step_seconds"] <= said["optimum_seconds"] * (1 + 1e-9)
    assert said["checked"]["columns costed anew"] == len(certificate(written)["columns"])


def test_every_partition_is_accounted_for_once(written: Path) -> None:
    """All Bell(n) partitions of the tasks, with what was removed of each or the number of its columns that were."""
    values = certificate(written)
    told = [each["partition"] for each in values["removals"] if each["reason"] != "priced cost of the vector"]
    assert len(set(told)) == len(told) == values["space"]["num_partitions"]
    tasks = {task for each in values["columns"] for task in each["tasks"]}
    assert all({task for group in each.split(" | ") for task in group.split("+")} == tasks for each in told)


def test_what_was_not_proven_anew_does_not_read_like_a_proof(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(written / "plan.certificate.json")
    said = {}
    for words in ("", "--complete"):
        assert main(["certify", file, "--mip", "cbc", "--quiet", *words.split()]) == 0
        said[words] = capsys.readouterr().out
        assert main(["certify", file, "--mip", "cbc", "--json", *words.split()]) == 0
        assert json.loads(capsys.readouterr().out)["complete"] is bool(words)
    assert "as far as it was checked" in said[""] and "not checked" in said[""] and "proven" not in said[""]
    assert "proven anew" in said["--complete"] and "not checked" not in said["--complete"]


def test_without_another_solver_the_certificates_own_checks_it_and_that_is_said(written: Path) -> None:
    without = "import sys; sys.modules['highspy'] = None; from hetrl.tools.main import main; sys.exit(main())"

    def certify(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", without, "certify", str(written / "plan.certificate.json"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    code, said = certify()
    assert code == 0
    assert "checked by cbc itself; pip install 'hetrl[highs]'" in said
    code, said = certify("--mip", "highs")
    assert code == 2
    assert "highs is not installed: it comes with pip install 'hetrl[highs]'" in said


def certificate(folder: Path) -> Document:
    document: Document = json.loads((folder / "plan.certificate.json").read_text())
    return dict(document["certificate"])


def cheaper_column(document: Document) -> None:
    column = document["certificate"]["columns"][0]
    task = column["tasks"][0]
    column["seconds"][task] *= 0.9


def cheaper_load(document: Document) -> None:
    column = document["certificate"]["columns"][0]
    column["loads"] = {task: 0.9 * load for task, load in column["loads"].items()}


def missing_winner(document: Document) -> None:
    values = document["certificate"]
    values["columns"] = [each for each in values["columns"] if each["name"] not in values["chosen"][:1]]


def another_capacity(document: Document) -> None:
    lines = document["certificate"]["mps"].splitlines()
    row = next(number for number, line in enumerate(lines) if "RHS" in line and "nodes_0" in line)
    lines[row] = lines[row].replace(lines[row].split()[-1], "9.000000000000e+00")
    document["certificate"]["mps"] = "\n".join(lines) + "\n"


def another_cost_in_the_program(document: Document) -> None:
    values = document["certificate"]
    values["mps"] = values["mps"].replace("cover_0", "cover_1", 1)


def another_optimum(document: Document) -> None:
    document["certificate"]["optimum_seconds"] *= 0.99


def another_fleet(document: Document) -> None:
    document["config"]["cluster_topology"]["nodes"][0]["gpus"] = 8


def another_class(document: Document) -> None:
    document["certificate"]["space"]["classes"][0]["size"] += 1


def outside_the_space(document: Document) -> None:
    column = document["certificate"]["columns"][0]
    column["realisation"][column["tasks"][0]]["micro_batch"] = 3


def larger_vector(document: Document) -> None:
    document["certificate"]["columns"][0]["vector"][0] = 99


def removed_below_the_optimum(document: Document) -> None:
    values = document["certificate"]
    values["removals"][0]["bound_seconds"] = 0.999 * values["optimum_seconds"]


def removed_less_than_none(document: Document) -> None:
    document["certificate"]["removals"][0]["number"] = -3


def nothing_accounted_for(document: Document) -> None:
    document["certificate"]["removals"] = []


def one_partition_passed_over(document: Document) -> None:
    values = document["certificate"]
    left_out = values["removals"][0]["partition"]
    values["removals"] = [each for each in values["removals"] if each["partition"] != left_out]


def only_vectors_accounted_for(document: Document) -> None:
    values = document["certificate"]
    values["removals"] = [each for each in values["removals"] if each["reason"] != "priced cost of the column"]


def one_partition_accounted_for_twice(document: Document) -> None:
    removals = document["certificate"]["removals"]
    removals.append(removals[-1])


def removed_outside_the_space(document: Document) -> None:
    removals = document["certificate"]["removals"]
    removals.append({**removals[-1], "partition": "actor_generate+actor_train"})


def vectors_of_a_foreign_group(document: Document) -> None:
    removals = document["certificate"]["removals"]
    removals.append({**removals[-1], "reason": "priced cost of the vector", "group": "actor_generate+nobody"})


def engine_shares(document: Document) -> None:
    column = document["certificate"]["columns"][0]
    engine = next(task for task in column["tasks"] if task.endswith("generate"))
    column["realisation"][engine]["shares"][0] += 1


def canonical_nodes_without_end(document: Document) -> None:
    document["certificate"]["columns"][0]["canonical_counts"][0] = 60_000


def relaxed_seconds(document: Document) -> None:
    document["certificate"]["combinations"][-1]["relaxed_seconds"] *= 1.01


def nothing_chosen(document: Document) -> None:
    document["certificate"]["chosen"] = []


CORRUPTIONS = [
    removed_below_the_optimum,
    removed_less_than_none,
    nothing_accounted_for,
    one_partition_passed_over,
    only_vectors_accounted_for,
    one_partition_accounted_for_twice,
    removed_outside_the_space,
    vectors_of_a_foreign_group,
    engine_shares,
    canonical_nodes_without_end,
    relaxed_seconds,
    nothing_chosen,
    cheaper_column,
    cheaper_load,
    missing_winner,
    another_capacity,
    another_cost_in_the_program,
    another_optimum,
    another_fleet,
    another_class,
    outside_the_space,
    larger_vector,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
@pytest.mark.parametrize("forged", [False, True], ids=["as it is", "checksum forged"])
def test_a_corrupted_certificate_is_refused(
    written: Path,
    tmp_path: Path,
    corrupt: Callable[[Document], None],
    forged: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads((written / "plan.certificate.json").read_text())
    before = json.dumps(document)
    corrupt(document)
    assert json.dumps(document) != before
    if forged:
        document["sha256"] = checksum({key: document[key] for key in ("config", "config_folder", "certificate")})
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    assert main(["certify", str(path), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert ("was changed" in said) is not forged


WRONG = {
    "null": None,
    "negative": -1,
    "text": "x",
    "list": [],
    "mapping": {},
    "huge": 10**30,
    "beyond floats": float("inf"),
    "not a number": float("nan"),
    "true": True,
    "fraction": 0.5,
}
FREE = {  # what another valid value may stand in: nothing follows from it, or only --complete tells
    "config_folder": {"text"},
    "certificate.cost_model": {"text"},
    "certificate.removals.*.bound_seconds": {"null"},
}


def one_of_each_kind(value: Any, path: tuple[str | int, ...] = ()) -> dict[str, tuple[str | int, ...]]:
    """A path to every value of the document, leaves and all that holds them, one of each kind."""
    found = {".".join("*" if isinstance(key, int) else key for key in path): path} if path else {}
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found |= one_of_each_kind(child, (*path, key))
    return found


@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_stands_anywhere_is_refused_without_a_traceback(
    written: Path, tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((written / "plan.certificate.json").read_text())
    kinds = {
        kind: path for kind, path in one_of_each_kind(whole).items() if kind not in ("format", "version", "sha256")
    }
    assert len(kinds) > 60
    file = tmp_path / "bad.json"
    accepted = []
    for kind, path in kinds.items():
        document = json.loads(json.dumps(whole))
        place = document
        for key in path[:-1]:
            place = place[key]
        if place[path[-1]] == WRONG[wrong] and type(place[path[-1]]) is type(WRONG[wrong]):
            continue
        place[path[-1]] = WRONG[wrong]
        document["sha256"] = checksum({key: document[key] for key in ("config", "config_folder", "certificate")})
        file.write_text(json.dumps(document))
        code = main(["certify", str(file), "--quiet", "--mip", "cbc"])
        said = capsys.readouterr().err
        assert "Traceback" not in said, f"{kind}: {said}"
        assert code in (0, 2), kind
        if code == 0:
            accepted.append(kind)
    assert set(accepted) <= {kind for kind, values in FREE.items() if wrong in values}


def test_a_certificate_of_another_cost_model_is_refused_by_that_name(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = CostModel.builtin()
    replace(model, gradient_overlap=0.5).save(tmp_path / "other.json")
    replace(model, source="elsewhere").save(tmp_path / "same.json")
    file = str(written / "plan.certificate.json")
    assert main(["certify", file, "--models", str(tmp_path / "other.json"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "cost model is another" in said
    assert "other.json" in said and "built-in" in said
    assert main(["certify", file, "--models", str(tmp_path / "same.json"), "--quiet"]) == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "hetrl-certificate"}', '{"format": "hetrl-certificate", "version": 1}']
)
def test_files_that_are_no_certificates_are_refused_by_name(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.json"
    path.write_text(text)
    assert main(["certify", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.fixture
def again(written: Path, tmp_path: Path) -> Path:
    """Copy of the folder, to write to."""
    return Path(shutil.copytree(written, tmp_path / "again"))


def test_a_new_plan_at_the_same_path_leaves_nothing_of_the_old_one(again: Path) -> None:
    before = json.loads((again / "plan.timings.json").read_text())
    arguments = ["--config", str(again / "job.yaml"), "--out", str(again / "plan.json"), "--quiet", "--budget", "50"]
    assert main(["plan", *arguments]) == 0
    assert sorted(path.name for path in again.iterdir()) == ["job.yaml", "plan.json", "plan.timings.json"]
    assert json.loads((again / "plan.timings.json").read_text()) != before


def test_a_file_that_is_no_certificate_is_nobodys_to_remove(again: Path) -> None:
    (again / "plan.certificate.json").write_text("mine")
    arguments = ["--config", str(again / "job.yaml"), "--out", str(again / "plan.json"), "--quiet", "--budget", "50"]
    assert main(["plan", *arguments]) == 0
    assert (again / "plan.certificate.json").read_text() == "mine"


@pytest.mark.parametrize("fails", ["plan.json", "plan.certificate.json", "plan.timings.json"])
def test_where_a_file_cannot_be_written_no_certificate_stands_without_its_plan(
    again: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in again.iterdir()}
    replace_file = hetrl.files._replace

    def full(target: Path, text: str) -> None:
        if target.name == fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(target, text)

    monkeypatch.setattr("hetrl.files._replace", full)
    changed = ["--set", "batch.num_prompts=32", "--quiet"]
    arguments = ["--solver", "ilp", "--config", str(again / "job.yaml"), "--out", str(again / "plan.json"), *changed]
    assert main(["plan", *arguments]) == 2
    left = {path.name: path.read_bytes() for path in again.iterdir()}
    if fails == "plan.json":
        assert left == before
        return
    assert json.loads(left["plan.json"])["config"]["batch"]["num_prompts"] == 32
    assert "plan.timings.json" not in left
    assert ("plan.certificate.json" in left) == (fails == "plan.timings.json")
    if "plan.certificate.json" in left:
        assert json.loads(left["plan.certificate.json"])["config"]["batch"]["num_prompts"] == 32


def another_job(plan: Document) -> None:
    plan["config"]["batch"]["num_prompts"] = 32


def another_value(plan: Document) -> None:
    plan["search"]["objective_value"] *= 1.01


def without_certificate(plan: Document) -> None:
    plan["search"]["certificate"] = None


@pytest.mark.parametrize("change", [another_job, another_value, without_certificate])
def test_the_certificate_of_another_plan_is_told_by_the_plan_beside_it(
    again: Path, change: Callable[[Document], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = again / "plan.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert main(["certify", str(again / "plan.certificate.json"), "--quiet"]) == 2
    assert "belongs to another plan" in capsys.readouterr().err
    path.unlink()
    assert main(["certify", str(again / "plan.certificate.json"), "--quiet"]) == 0


def test_the_hybrid_solver_has_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(TWO_NODES)
    arguments = ["--config", str(tmp_path / "job.yaml"), "--quiet", "--budget", "50"]
    assert main(["plan", *arguments, "--certificate", str(tmp_path / "c.json")]) == 2
    assert "--certificate" in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("more", [("--objective", "usd_per_step"), ("--gap", "0.05"), ("--solver", "hybrid")])
def test_a_certificate_that_cannot_be_is_refused_before_the_search(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(TWO_NODES)
    monkeypatch.delattr("hetrl.tools.plan.solve")  # nothing is searched
    arguments = ["--config", str(tmp_path / "job.yaml"), "--quiet", "--certificate", str(tmp_path / "c.json")]
    assert main(["plan", "--solver", "ilp", *arguments, *more]) == 2
    assert "--certificate: no certificate" in capsys.readouterr().err


def test_a_proof_that_was_cut_off_costs_the_certificate_and_not_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(TWO_NODES)
    files = ["--out", str(tmp_path / "p.json"), "--certificate", str(tmp_path / "c.json"), "--time-limit", "0.01"]
    assert main(["plan", "--solver", "ilp", "--config", str(tmp_path / "job.yaml"), "--quiet", *files]) == 0
    assert "c.json is not written: the proof was cut off" in capsys.readouterr().err
    assert (tmp_path / "p.json").is_file()
    assert not (tmp_path / "c.json").exists()


@pytest.mark.slow
def test_an_infeasible_job_is_proven_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = TWO_NODES.replace("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Meta-Llama-3-70B-Instruct")
    (tmp_path / "job.yaml").write_text(large.replace("gpus: 4,", "gpus: 4, host_ram: 64GiB,"))
    assert main(["plan", "--solver", "ilp", "--config", str(tmp_path / "job.yaml"), "--quiet"]) == 3
    said = capsys.readouterr().err
    assert "proven" in said
    assert "actor_train" in said
