"""Writing files whole or not at all.

A reader never sees half a file, and a failed command leaves what was there before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hetrl.errors import Problem, SpecError


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` (UTF-8) to `path`: the old file stays until the new one is complete and on disk.

    Parameters
    ----------
    path
        Where to write. A symbolic link is followed; a device or pipe such as ``/dev/stdout`` is written to directly.
    text
        The whole content.

    Raises
    ------
    SpecError
        If the path cannot be written (no such folder, a folder itself, no permission, disk full).
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            _replace(Path(os.path.realpath(target)), text)
    except OSError as error:
        problem = Problem(path=str(target), message=f"cannot be written: {error.strerror}", rule="OUTPUT")
        raise SpecError(problem) from error


def write_json_atomically(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, keys in their own order, with a final newline.

    Parameters
    ----------
    path
        Where to write, as in :func:`write_text_atomically`.
    value
        Anything :func:`json.dumps` takes. Infinities and NaN are refused, for they are not JSON.

    Raises
    ------
    SpecError
        If the path cannot be written.
    ValueError, TypeError
        If the value has no JSON form; nothing is written then.
    """
    write_text_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _replace(target: Path, text: str) -> None:
    temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
