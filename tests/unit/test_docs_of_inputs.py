"""The pages on job files and cases name every key and every ask that exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from benchmarks import case_memory, case_plan, case_sync
from benchmarks.case_asks import ASKS
from hetrl.cost.published import KINDS
from hetrl.plan.plan import OPTIMIZER_STATES, SHARDINGS, WEIGHTS_WHEN_IDLE
from hetrl.search.written_plan import STRATEGY_KEYS
from hetrl.spec.job import Batch, OptimizerSettings, Precision, RunSettings
from hetrl.spec.load import JOB_KEYS, WORKFLOW_KEYS, load_job
from hetrl.spec.load_devices import DEVICE_KEYS
from hetrl.spec.load_links import LINK_KEYS
from hetrl.spec.load_node import NODE_KEYS
from hetrl.tools import estimate, plan
from hetrl.workload.setups import EngineSetup, TrainSetup

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
WRITTEN_PLAN = (ROOT / "docs" / "written_plan.md").read_text()
CASES = (ROOT / "docs" / "cases.md").read_text()
SECTIONS = [field.name for section in (Batch, OptimizerSettings, Precision, RunSettings) for field in fields(section)]


@pytest.mark.parametrize("key", [*JOB_KEYS, *WORKFLOW_KEYS, *NODE_KEYS, *LINK_KEYS, *DEVICE_KEYS, *SECTIONS])
def test_every_key_of_a_job_file_is_documented(key: str) -> None:
    assert key in CONFIGURATION


@pytest.mark.parametrize("name", ASKS)
def test_every_ask_is_documented(name: str) -> None:
    assert f"`{name}`" in CASES
    assert case_memory and case_plan and case_sync


@pytest.mark.parametrize(
    "key", [field.name for setup in (TrainSetup, EngineSetup) for field in fields(setup) if field.name != "precision"]
)
def test_every_key_of_a_setup_is_documented(key: str) -> None:
    assert f"`{key}`" in CASES


def test_the_example_of_the_page_loads() -> None:
    example = CONFIGURATION.split("```yaml\n")[1].split("```")[0]
    assert load_job(example).topology.num_devices == 12


def test_the_written_plan_of_the_page_is_costed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.yaml").write_text(WRITTEN_PLAN.split("```yaml\n")[1].split("```")[0])
    assert estimate.main([str(tmp_path / "plan.yaml"), "--config", str(ROOT / "configs" / "rlhf_70b.yaml")]) == 0
    said = capsys.readouterr().out
    assert "group 0: 16 devices" in said
    assert "critic_train" in said and "PP4 (9+8+8+7 layers) on L40S" in said


@pytest.mark.parametrize("key", ["groups", "strategies", "tasks", "nodes", *STRATEGY_KEYS])
def test_every_key_of_a_written_plan_is_documented(key: str) -> None:
    assert f"`{key}`" in WRITTEN_PLAN


@pytest.mark.parametrize("value", [*SHARDINGS, *WEIGHTS_WHEN_IDLE, *OPTIMIZER_STATES])
def test_every_value_of_a_written_plan_is_documented(value: str) -> None:
    assert f"`{value}`" in WRITTEN_PLAN


def test_the_page_on_launching_has_every_key_with_its_default() -> None:
    page = (ROOT / "docs" / "launch.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    for field in fields(RunSettings):
        shown = rows[field.name].strip()
        assert field.default == "" or float(shown) == field.default


def test_the_page_on_plans_names_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--config", str(ROOT / "configs" / "rlhf_70b.yaml"), "--budget", "1", "--quiet"]) == 0
    said = capsys.readouterr().out
    page = (ROOT / "docs" / "reading_a_plan.md").read_text()
    headings = re.findall(r"\*\*([^*]+)\*\*", page)
    assert len(headings) >= 10
    assert [name for name in headings if name.removesuffix(" ...") not in said] == []
    shown = {line.partition(":")[0] for line in said.splitlines() if re.match(r"[a-z][a-z ,]*: ", line)}
    assert [name for name in sorted(shown) if name.partition(",")[0] not in page and name != "warning"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_of_a_table_is_documented(kind: str) -> None:
    page = (ROOT / "docs" / "fidelity.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {kind} |")]
    like = "| attention_prefill |" if kind == "attention_decode" else row
    (other,) = [line for line in page.splitlines() if line.startswith(like)]
    assert [column for column in KINDS[kind] if f"`{column}`" not in row + other] == []


def test_pages_name_no_folder_outside_the_checkout() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [
        page.name for page in pages if re.search(r"(?<![\w./])\.\./|(?<![\w.])/(?:work|tmp|home)/", page.read_text())
    ] == []


def test_every_identifier_of_a_message_is_on_the_page_of_rules() -> None:
    sources = [path.read_text() for part in ("hetrl", "profiler") for path in (ROOT / part).rglob("*.py")]
    given = {rule for source in sources for rule in re.findall(r'\brule(?:: str)?=\s*"([A-Z_]+)"', source)}
    assert {"DEVICE_MEMORY", "KV_ROOM", "UNKNOWN_KEY"} <= given
    page = (ROOT / "docs" / "rules.md").read_text()
    assert [rule for rule in sorted(given - {"INPUT"}) if f"`{rule}`" not in page] == []


def test_every_rule_of_the_page_is_given_by_a_message() -> None:
    sources = "".join(path.read_text() for part in ("hetrl", "profiler") for path in (ROOT / part).rglob("*.py"))
    page = (ROOT / "docs" / "rules.md").read_text()
    named = {
        name for row in re.findall(r"^\| (`[A-Z_`, ]+) \|", page, re.MULTILINE) for name in row.strip("`").split("`, `")
    }
    assert len(named) > 40
    assert [name for name in sorted(named) if f'"{name}"' not in sources] == []


def test_the_overview_links_every_page() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    overview = (ROOT / "docs" / "index.md").read_text()
    assert [page for page in sorted(pages) if f"({page})" not in overview] == []


def test_pages_of_the_site_exist() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert f"into {site['site_dir']}/" in (ROOT / "Makefile").read_text()
    pages = [page for entry in site["nav"] for page in entry.values()]
    assert [page for page in pages if page != "index.md" and not (ROOT / "docs" / page).exists()] == []
