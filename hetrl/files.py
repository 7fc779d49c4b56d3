"""Writing files whole or not at all.

A reader never sees half a file, and a failed command leaves what was there before.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    with _as_problem(target):
        if _is_stream(target):
            with target.open("w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            _replace(Path(os.path.realpath(target)), text)


def check_writable(*paths: str | os.PathLike[str] | None) -> None:
    """Raise what `write_text_atomically` would: to be asked before long work. None stands for nothing to write."""
    for path in paths:
        if path is None:
            continue
        target = Path(path)
        with _as_problem(target):
            if _is_stream(target):
                continue
            real = Path(os.path.realpath(target))
            if real.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            temporary = _temporary(real)  # what writing begins with: asks the file system, whoever the user is
            temporary.open("x").close()
            temporary.unlink()


def check_appendable(path: str | os.PathLike[str]) -> None:
    """Raise a SpecError if lines cannot be appended to a file, whose folders are made; leaves the file as it is."""
    target = Path(path)
    with _as_problem(target):
        if target.exists():
            target.open("ab").close()
            return
        target.parent.mkdir(parents=True, exist_ok=True)
    check_writable(target)


def _is_stream(target: Path) -> bool:
    return target.exists() and not target.is_file() and not target.is_dir()


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")


@contextmanager
def _as_problem(target: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # whoever reads a pipe may stop
        raise
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
    temporary = _temporary(target)
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
