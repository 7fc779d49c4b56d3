"""Typed reading of one YAML mapping: every problem is collected with its path, every default is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from hetrl.errors import Problem, SpecError, did_you_mean

T = TypeVar("T")
P = ParamSpec("P")


class Report:
    """What reading a job gathers: problems, assumed defaults and warnings."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.assumed: dict[str, str] = {}
        self.warnings: list[str] = []

    def problem(self, path: str, message: str, found: object = "", valid: str = "", rule: str = "INPUT") -> None:
        """Record a problem; ``found`` is shown as the user wrote it."""
        shown = found if isinstance(found, str) and found == "" else repr(found)[:120]
        self.problems.append(Problem(path=path, message=message, found=shown, valid=valid, rule=rule))

    def attempt(self, fallback: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``function(*args, **kwargs)``; on `SpecError` record its problems and return ``fallback``."""
        try:
            return function(*args, **kwargs)
        except SpecError as error:
            self.problems.extend(error.problems)
            return fallback

    def raise_if_any(self) -> None:
        """Raise all problems found so far at once."""
        if self.problems:
            raise SpecError(self.problems)


class Section:
    """One mapping of the YAML file.

    Every getter takes the default that is used (and recorded as assumed) when the key is absent or null.
    """

    def __init__(
        self, values: object, path: str, report: Report, keys: Iterable[str], renamed: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.path = path
        self.report = report
        if values is None:
            values = {}
        if not isinstance(values, dict):
            report.problem(path or "file", "must be a mapping of keys to values", values)
            values = {}
        self._values: dict[str, object] = values
        known = tuple(keys)
        self._meant: set[str] = set()  # known keys that a misspelt one may have meant
        hints = dict(renamed)
        for key in values:
            if key not in known:
                hint = hints.get(key) or did_you_mean(key, known) or "one of " + ", ".join(known)
                self._meant.update(name for name in known if f"'{name}'" in hint)
                report.problem(self.at(key), "unknown key", key, hint, rule="UNKNOWN_KEY")

    def at(self, key: str) -> str:
        """Return the dotted path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self._values.get(key) is not None

    def raw(self, key: str) -> object:
        """Return the value as written, None if absent."""
        return self._values.get(key)

    def missing(self, key: str, valid: str = "") -> None:
        """Record that a required key is missing, unless a misspelt key that may have meant it was reported."""
        if key not in self._meant:
            self.report.problem(self.at(key), "missing", valid=valid)

    def assume(self, key: str, value: object) -> None:
        """Record that a default stands in for ``key``."""
        self.report.assumed[self.at(key)] = str(value)

    def _default(self, key: str, default: T, shown: object = None) -> T:
        if default is not None:
            self.assume(key, default if shown is None else shown)
        return default

    def text(self, key: str, default: str = "", *, choices: Sequence[str] = (), required: bool = False) -> str:
        """Return a non-empty string; ``choices`` are matched without regard to case."""
        value = self.raw(key)
        if value is None:
            if required:
                self.missing(key, ", ".join(choices))
                return default
            return self._default(key, default) if default else default
        if not isinstance(value, str) or not value.strip():
            self.report.problem(self.at(key), "must be text", value, ", ".join(choices))
            return default
        if choices:
            folded = {choice.casefold(): choice for choice in choices}
            if value.casefold() not in folded:
                self.report.problem(
                    self.at(key), "not one of the choices", value, did_you_mean(value, choices) or ", ".join(choices)
                )
                return default
            return folded[value.casefold()]
        return value.strip()

    def count(self, key: str, default: int | None, *, minimum: int = 1, maximum: int = 10**9) -> int:
        """Return a whole number between ``minimum`` and ``maximum``; a default of None makes the key required."""
        value = self.raw(key)
        valid = f"a whole number from {minimum} to {maximum}"
        if value is None:
            if default is None:
                self.missing(key, valid)
                return minimum
            return self._default(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self.report.problem(self.at(key), "not a valid count", value, valid)
            return default if default is not None else minimum
        return value

    def number(self, key: str, default: float, *, minimum: float, maximum: float = math.inf) -> float:
        """Return a finite number between ``minimum`` and ``maximum``."""
        value = self.raw(key)
        if value is None:
            return self._default(key, default, f"{default:g}")
        bound = "" if math.isinf(maximum) else f" to {maximum:g}"
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or not minimum <= value <= maximum
        ):
            self.report.problem(self.at(key), "not a valid number", value, f"a number from {minimum:g}{bound}")
            return default
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.raw(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, bool):
            self.report.problem(self.at(key), "must be true or false", value, "true or false")
            return default
        return value

    def quantity(self, key: str, parse: Callable[..., float], default: float | None, shown: str = "") -> float | None:
        """Return a value with a unit, read by one of the parsers of `hetrl.units`."""
        value = self.raw(key)
        if value is None:
            return self._default(key, default, shown or None)
        return self.report.attempt(default, parse, value, self.at(key))

    def listing(self, key: str) -> list[object]:
        """Return a list, empty if absent."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.report.problem(self.at(key), "must be a list", value, "a list")
            return []
        return value
