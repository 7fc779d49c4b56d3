"""The pages on job files and cases name every key and every ask that exists."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from benchmarks import case_memory, case_plan, case_sync
from benchmarks.case_asks import ASKS
from hetrl.spec.job import Batch, OptimizerSettings, Precision, RunSettings
from hetrl.spec.load import JOB_KEYS, WORKFLOW_KEYS, load_job
from hetrl.spec.load_devices import DEVICE_KEYS
from hetrl.spec.load_links import LINK_KEYS
from hetrl.spec.load_node import NODE_KEYS
from hetrl.workload.setups import EngineSetup, TrainSetup

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
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


def test_pages_of_the_site_exist() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = [page for entry in site["nav"] for page in entry.values()]
    assert [page for page in pages if page != "index.md" and not (ROOT / "docs" / page).exists()] == []
