"""Who may know whom. What the table does not list is forbidden; a new room must be entered here first."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "hetrl": ROOT / "hetrl",
    "hetrl_kernels": ROOT / "kernels" / "hetrl_kernels",
    "hetrl_profiler": ROOT / "profiler" / "hetrl_profiler",
}

EVERYTHING = {"*"}
MAY_IMPORT = {
    "kernels": set(),
    "catalog": set(),
    "spec": {"catalog"},
    "workload": {"spec"},
    "plan": {"spec"},
    "measure": {"spec"},
    "cost": {"spec", "workload", "plan", "kernels"},
    "search": {"spec", "workload", "cost", "plan", "kernels"},
    "simulate": {"spec", "workload", "plan", "cost"},
    "suite": {"search", "simulate", "report"},
    "runtime": {"spec", "plan", "measure"},
    "profiler": {"spec", "workload", "cost", "measure"},
    "export": {"spec", "plan", "measure", "simulate"},
    "report": {"spec", "plan", "measure", "simulate"},
    "tools": EVERYTHING,
}
OPEN_TO_ALL = {"errors", "units", "files", "__version__"}
HEAVY = {"torch", "ray", "vllm", "sklearn", "scipy", "pandas", "transformers"}


def room_of(module: str) -> str | None:
    """Return the room a dotted module name lies in, or None if it is not ours.

    ``hetrl.cost.model`` is in ``cost``, ``hetrl_kernels.anneal`` in ``kernels``, ``hetrl`` itself in ``hetrl``.
    """
    package, *inside = module.split(".")
    if package == "hetrl":
        return inside[0] if inside else "hetrl"
    return package.removeprefix("hetrl_") if package in SOURCES else None


def module_of(path: Path) -> str:
    """Return the dotted name of the module in a source file."""
    for package, folder in SOURCES.items():
        if path.is_relative_to(folder):
            parts = path.relative_to(folder).with_suffix("").parts
            return ".".join((package, *(part for part in parts if part != "__init__")))
    raise AssertionError(f"{path} lies in no source root")


def imported_modules(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything a source text imports, wherever it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            base = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join((*base, *((node.module,) if node.module else ())))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def violations(path: Path) -> list[str]:
    """Return what a source file imports and may not."""
    module = module_of(path)
    room = room_of(module)
    if room in OPEN_TO_ALL or room == "hetrl":
        allowed: set[str] = set()
    else:
        assert room in MAY_IMPORT, (
            f"{path.relative_to(ROOT)}: room '{room}' is not in the table of {Path(__file__).name}"
        )
        allowed = MAY_IMPORT[room]
    found = []
    for line, name in imported_modules(path.read_text(encoding="utf-8"), module, is_package=path.stem == "__init__"):
        target = room_of(name)
        if target in (None, room, "hetrl") or target in OPEN_TO_ALL or allowed is EVERYTHING or target in allowed:
            continue
        found.append(f"{path.relative_to(ROOT)}:{line}: {room} may not import {name}")
    return found


def source_files() -> list[Path]:
    return sorted(path for folder in SOURCES.values() for path in folder.rglob("*.py"))


def test_rooms_only_import_what_they_may() -> None:
    files = source_files()
    assert len(files) > len(SOURCES)
    assert [violation for path in files for violation in violations(path)] == []


def test_simulation_uses_unit_costs_and_not_the_evaluator() -> None:
    for path in (ROOT / "hetrl" / "simulate").rglob("*.py"):
        names = {
            name for _, name in imported_modules(path.read_text(encoding="utf-8"), module_of(path), is_package=False)
        }
        assert not {name for name in names if name.startswith("hetrl.cost.evaluate")}, path


def test_scikit_learn_lives_in_the_profiler() -> None:
    for path in source_files():
        if room_of(module_of(path)) != "profiler":
            names = imported_modules(path.read_text(encoding="utf-8"), module_of(path), is_package=False)
            assert not [name for _, name in names if name.split(".")[0] == "sklearn"], path


@pytest.mark.parametrize(
    ("source", "module", "expected"),
    [
        ("import hetrl.search.hybrid", "hetrl.cost.model", "hetrl.search.hybrid"),
        ("from hetrl import search", "hetrl.cost.model", "hetrl.search"),
        ("def f():\n    from ..search import hybrid", "hetrl.cost.model", "hetrl.search.hybrid"),
        ("from .tables import lower", "hetrl.cost.model", "hetrl.cost.tables.lower"),
    ],
)
def test_imports_are_seen_in_every_form(source: str, module: str, expected: str) -> None:
    assert [name for _, name in imported_modules(source, module, is_package=False)] == [expected]


def test_relative_import_of_a_package_starts_at_itself() -> None:
    names = [name for _, name in imported_modules("from .model import Cost", "hetrl.cost", is_package=True)]
    assert names == ["hetrl.cost.model.Cost"]


def loaded_modules(statement: str, cwd: Path) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"import sys\ntry:\n    {statement}\nfinally:\n    print('\\n' + ' '.join(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)
    assert child.returncode == 0, child.stderr
    return {name.partition(".")[0] for name in child.stdout.splitlines()[-1].split()}


def test_importing_hetrl_is_light(tmp_path: Path) -> None:
    assert not loaded_modules("import hetrl", tmp_path) & (HEAVY | {"numpy", "pulp", "rich"})


def test_help_is_light(tmp_path: Path) -> None:
    loaded = loaded_modules("from hetrl.tools.main import main; main(['--help'])", tmp_path)
    assert not loaded & (HEAVY | {"numpy", "pulp", "rich"})


def test_help_of_plan_loads_no_heavy_package(tmp_path: Path) -> None:
    assert not loaded_modules("from hetrl.tools.main import main; main(['plan', '--help'])", tmp_path) & HEAVY


def test_planning_loads_neither_torch_nor_ray_nor_vllm_nor_scikit_learn(tmp_path: Path) -> None:
    arguments = ["plan", "--config", str(ROOT / "configs" / "rlhf_70b.yaml"), "--out", "plan.json", "--quiet"]
    loaded = loaded_modules(f"from hetrl.tools.main import main; assert main({arguments}) == 0", tmp_path)
    assert (tmp_path / "plan.json").is_file()
    assert not loaded & {"torch", "ray", "vllm", "sklearn", "transformers", "numba", "jsonschema"}
