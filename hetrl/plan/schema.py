"""Checks of JSON data against the schemas that lie beside the code which reads it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from hetrl.errors import Problem

MOST_PROBLEMS = 20
MOST_CHARACTERS = 300


def schema_problems(document: object, *, package: str, schema: str, source: str, rule: str) -> list[Problem]:
    """Return every place, up to a limit, where JSON data departs from a schema.

    Whole numbers are those that JSON writes without a fraction: 2.0 is no count.

    Parameters
    ----------
    package, schema
        Where the schema lies, and its file's name.
    source
        The file that the data are from.
    rule
        Identifier of the problems.
    """
    import jsonschema

    checker = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole)
    validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
        jsonschema.Draft202012Validator, type_checker=checker
    )
    rules = json.loads(resources.files(package).joinpath(schema).read_text(encoding="utf-8"))
    errors = sorted(validator(rules).iter_errors(document), key=lambda error: list(map(str, error.path)))
    return [
        Problem(
            path=f"{source}: {_json_path(list(error.absolute_path))}",
            message=error.message if len(error.message) < MOST_CHARACTERS else error.message[:MOST_CHARACTERS] + "...",
            rule=rule,
        )
        for error in errors[:MOST_PROBLEMS]
    ]


def _is_whole(checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _json_path(parts: list[Any]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or "(top level)"
