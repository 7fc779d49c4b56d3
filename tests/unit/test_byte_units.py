"""People read sizes in binary units everywhere: `hetrl.units.format_bytes` writes them, and nothing else does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetrl.spec.environment_rules import host_ram_problems
from hetrl.tools import memory
from hetrl.units import format_bytes

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("hetrl", "profiler", "kernels") for path in (ROOT / room).rglob("*.py"))
UNIT_AFTER_A_FIGURE = re.compile(r" ?[kKMGTP]?i?B\b(?!/s)")
DECIMAL_UNIT = re.compile(r"(?<![0-9A-Za-z])[kKMGTP]B\b(?!/s)")
"""``GB`` in a text; not in ``50 GB/s``, ``80GB`` or ``A100-80GB``, which are bandwidths, input and names."""


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64e9, "59.6 GiB"), (2**50, "1024.0 TiB")]
)
def test_a_size_is_in_the_largest_unit_that_fits(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


def own_units(tree: ast.Module) -> Iterator[int]:
    """Lines with a figure and its unit, or a decimal unit of sizes, that `format_bytes` did not write."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for figure, text in zip(node.values, node.values[1:], strict=False):
                told = text.value if isinstance(text, ast.Constant) else ""
                if isinstance(figure, ast.FormattedValue) and UNIT_AFTER_A_FIGURE.match(str(told)):
                    yield node.lineno
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documentation else None
        if isinstance(text, str) and DECIMAL_UNIT.search(text):
            yield node.lineno


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('f"{needed / 1e9:.2f} GB needed"', True),
        ('f"{size / GIB:.1f} GiB"', True),
        ('f"{size} B"', True),
        ('"host RAM (GB): "', True),
        ('f"{speed / 1e9:g} GB/s"', False),
        ('"A100-80GB"', False),
        ('f"{each.total} bytes per parameter"', False),
    ],
)
def test_what_counts_as_an_own_unit(line: str, is_found: bool) -> None:
    assert any(own_units(ast.parse(f"text = {line}"))) == is_found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_writes_sizes_itself(path: Path) -> None:
    if path.name != "units.py":
        assert list(own_units(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_host_memory_that_is_short_is_told_in_the_unit_of_the_rest() -> None:
    (problem,) = host_ram_problems(91 * 2**30, 64 * 2**30)
    assert problem.found == "91.00 GiB needed, 64.00 GiB there" and problem.valid.startswith("at most 64.00 GiB")


def test_memory_of_devices_and_hosts_is_in_one_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main([str(ROOT / "configs" / "rlhf_70b.yaml"), "--budget", "1"]) == 0
    _, head, *lines = capsys.readouterr().out.splitlines()
    assert "largest term" in head and "GB" not in head and "GiB" not in head
    assert all(re.search(r"\d GiB  (fits|tight)", line) for line in lines if " fits " in line or " tight " in line)
    (hosts,) = [line for line in lines if line.startswith("host RAM")]
    assert re.fullmatch(r"host RAM: (\S+ [\d.]+ [GT]iB of [\d.]+ [GT]iB(, )?)+", hosts)
