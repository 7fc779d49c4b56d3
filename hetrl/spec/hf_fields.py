"""Typed, problem-collecting access to the keys of a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetrl.errors import Problem

MAX_COUNT = 2**40


class Fields:
    """Reads a config dictionary; a null counts as absent, an absent key falls back to the class default.

    Problems are collected in `problems` so that all of them can be reported at once; a faulty key yields 1.

    Parameters
    ----------
    config
        The (flattened) config.
    defaults
        What the Hugging Face config class uses for an omitted key; empty for families without a fixed default.
    path
        Prefix of the problem paths.
    """

    def __init__(self, config: Mapping[str, object], defaults: Mapping[str, object], path: str) -> None:
        self._config = config
        self._defaults = defaults
        self._path = path
        self.problems: list[Problem] = []
        self.filled: dict[str, object] = {}

    def get(self, *keys: str) -> object:
        """Return the first of ``keys`` that is present and not null, else the class default, else None."""
        for key in keys:
            value = self._config.get(key)
            if value is not None:
                return value
        for key in keys:
            value = self._defaults.get(key)
            if value is not None:
                self.filled[key] = value
                return value
        return None

    def given(self, key: str) -> bool:
        """Whether the config itself has a non-null ``key``."""
        return self._config.get(key) is not None

    def count(self, *keys: str, default: int | None = None, minimum: int = 1) -> int:
        """Return a whole number of at least ``minimum``."""
        value = self.get(*keys)
        if value is None:
            value = default
        if value is None:
            self._problem(
                keys[0], "missing, and its class has no default", valid=f"a whole number of at least {minimum}"
            )
            return 1
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self._problem(keys[0], "not a whole number", value, f"a whole number of at least {minimum}")
            return 1
        if not minimum <= value <= MAX_COUNT:
            self._problem(keys[0], "out of range", value, f"{minimum} to 2^40")
            return 1
        return value

    def flag(self, *keys: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.get(*keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._problem(keys[0], "not a boolean", value, "true or false")
            return default
        return value

    def text(self, *keys: str, default: str = "") -> str:
        """Return a string."""
        value = self.get(*keys)
        return value if isinstance(value, str) else default

    def listing(self, *keys: str) -> Sequence[object]:
        """Return a list, empty if absent."""
        value = self.get(*keys)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            self._problem(keys[0], "not a list", value, "a list")
            return ()
        return value

    def mapping(self, *keys: str) -> Mapping[str, object]:
        """Return a nested mapping, empty if absent."""
        value = self.get(*keys)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._problem(keys[0], "not a mapping", value, "a mapping")
            return {}
        return value

    def _problem(self, key: str, message: str, found: object = "", valid: str = "") -> None:
        path = f"{self._path}.{key}" if self._path else key
        problem = Problem(
            path=path, message=message, found=f"{found!r}"[:80] if found != "" else "", valid=valid, rule="MODEL"
        )
        if problem not in self.problems:
            self.problems.append(problem)

    def reject(self, key: str, message: str, found: object = "", valid: str = "") -> None:
        """Record a problem found by the caller."""
        self._problem(key, message, found, valid)
