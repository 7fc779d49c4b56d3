"""Untrusted YAML or JSON text to plain values: bounded, without aliases, tags or repeated keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from hetrl.errors import Problem, SpecError
from hetrl.units import format_bytes

MAX_BYTES = 4 * 1024**2
MAX_DEPTH = 24
MAX_INTEGER_DIGITS = 300

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _fail(message: str, *, source: str, found: str = "", valid: str = "") -> SpecError:
    return SpecError(Problem(path=source, message=message, found=found, valid=valid, rule="YAML"))


def read_text(path: Path, what: str = "file", max_bytes: int = MAX_BYTES, *, pipes: bool = False) -> str:
    """Return the text of a file of at most ``max_bytes``.

    Parameters
    ----------
    pipes
        Also read pipes and, for ``-``, the standard input: for what the user names, not for what a file names, which
        could wait for ever.

    Raises
    ------
    SpecError
        If it does not exist, is a folder, is too large or is not UTF-8.
    """
    try:
        if pipes and str(path) == "-":
            data = sys.stdin.buffer.read(max_bytes + 1) if sys.stdin is not None else b""
        elif pipes or path.is_file():
            with path.open("rb") as stream:  # a pipe tells its size only by being read
                data = stream.read(max_bytes + 1)
        elif path.is_dir():
            raise _fail(f"a folder, not a {what}", source=str(path))
        else:
            raise _fail(f"no such {what}" if not path.exists() else f"not a regular {what}", source=str(path))
        if len(data) > max_bytes:
            raise _fail(f"{what} too large", source=str(path), valid=f"at most {format_bytes(max_bytes)}")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise _fail(f"no such {what}", source=str(path)) from None
    except IsADirectoryError:
        raise _fail(f"a folder, not a {what}", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise _fail(f"{what} is not UTF-8 text", source=str(path), found=error.reason) from None
    except (OSError, ValueError) as error:
        raise _fail(f"{what} cannot be read", source=repr(str(path))[:200], found=str(error)[:200]) from None


def folder_of(path: Path) -> Path:
    """Return the folder that relative paths in a file start from; for a pipe it is the working directory."""
    return path.parent if path.is_file() else Path()


def parse_yaml(text: str, source: str = "") -> object:
    """Return the plain values of a YAML (or JSON) document.

    Raises
    ------
    SpecError
        For broken syntax, several documents, repeated keys, aliases, tags, keys that are not text or deep nesting.

    Examples
    --------
    >>> parse_yaml("a: {b: [1, 2.5, yes]}")
    {'a': {'b': [1, 2.5, True]}}
    """
    if len(text) > MAX_BYTES:
        raise _fail("text too long", source=source, found=f"{len(text)} characters", valid=f"at most {MAX_BYTES}")
    try:
        _check_events(text, source)
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Builder(text, source).build(node, "")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise _fail(f"not valid YAML: {reason}", source=source, found=where) from None


def _line(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}"


def _check_events(text: str, source: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _fail("aliases and anchors are not allowed", source=source, found=_line(event.start_mark))
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            if depth > MAX_DEPTH:
                raise _fail("nested too deeply", source=source, valid=f"at most {MAX_DEPTH} levels")
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1


class _Builder:
    """Turns nodes into values and collects repeated keys."""

    def __init__(self, text: str, source: str) -> None:
        self._constructor = _Loader("")
        self._source = source

    def build(self, node: yaml.Node, path: str) -> object:
        if isinstance(node, yaml.MappingNode):
            values: dict[str, object] = {}
            for key_node, value_node in node.value:
                key = self._key(key_node)
                where = f"{path}.{key}" if path else key
                if key in values:
                    raise _fail("key given twice", source=where, found=_line(key_node.start_mark))
                values[key] = self.build(value_node, where)
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _fail("a key must be text", source=self._source, found=_line(node.start_mark))
        return str(node.value)

    def _scalar(self, node: yaml.Node, path: str) -> object:
        if node.tag == "tag:yaml.org,2002:timestamp":
            return str(node.value)
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MAX_INTEGER_DIGITS:
            raise _fail("number too long", source=path, found=f"{node.value[:20]}...")
        try:
            value = self._constructor.construct_object(node)
        except ValueError:
            raise _fail("not a readable value", source=path, found=repr(node.value)[:80]) from None
        if value is None or isinstance(value, (str, int, float, bool)):
            return value
        raise _fail("only text, numbers, booleans, lists and mappings are allowed", source=path, found=repr(node.tag))
