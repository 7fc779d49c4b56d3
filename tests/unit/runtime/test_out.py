"""Folders that a run may write into."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.runtime.run import check_out


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["long" * 100, "file/below", "file", "full", "dangling"])
def test_folders_that_will_not_do(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "metrics.jsonl").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SpecError) as caught:
        check_out(tmp_path / name, resume)
    assert caught.value.problems[0].path in ("--out", "--resume")


def test_new_and_empty_folders_will_do(tmp_path: Path) -> None:
    assert check_out(tmp_path, resume=False) is None
    assert check_out(tmp_path / "new" / "run", resume=False) is None
