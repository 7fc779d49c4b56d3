"""Files are written whole or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.files import write_json_atomically, write_text_atomically


def test_text_is_written_as_given(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text_atomically(target, "größe\n")
    assert target.read_bytes() == "größe\n".encode()


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    write_text_atomically(tmp_path / "a.txt", "one")
    write_text_atomically(tmp_path / "a.txt", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "two"


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(target, "x" * 100_000 + "\ud800")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_json_keeps_key_order_and_ends_with_a_newline(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json_atomically(target, {"b": 1, "a": [1.5, None]})
    assert target.read_text() == '{\n  "b": 1,\n  "a": [\n    1.5,\n    null\n  ]\n}\n'
    assert list(json.loads(target.read_text())) == ["b", "a"]


def test_infinity_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomically(tmp_path / "a.json", math.inf)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["missing/a.txt", "."])
def test_an_unwritable_path_is_the_users_mistake(where: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written") as caught:
        write_text_atomically(tmp_path / where, "x")
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_mode_of_the_old_file_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    target.chmod(0o640)
    write_text_atomically(target, "new")
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    write_text_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "x"


def test_devices_are_written_to_and_not_replaced() -> None:
    write_text_atomically("/dev/null", "x")
    assert Path("/dev/null").is_char_device()
