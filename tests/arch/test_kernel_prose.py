"""Comments and docstrings of the kernels, which no formatter looks at, stay readable beside each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "hetrl_kernels"
SOURCES = sorted([*KERNELS.glob("*.pyx"), *KERNELS.glob("*.pxd")])
LONGEST = 135
DOCSTRING = re.compile(r'^[ \t]*""".*?"""', re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.name))
def test_prose_is_not_wider_than_a_screen(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    prose = [line for found in (*DOCSTRING.findall(text), *COMMENT.findall(text)) for line in found.splitlines()]
    assert prose, "every kernel says what it is"
    assert [line for line in prose if len(line) > LONGEST] == []
