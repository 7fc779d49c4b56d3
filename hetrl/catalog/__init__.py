"""Data, not code: devices, cloud instances, models, with a source per figure. `read` returns one file, parsed once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def read(name: str) -> Any:
    """Return the parsed contents of a catalogue file such as ``devices.yaml``; treat it as read-only."""
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader, compiled where available)
