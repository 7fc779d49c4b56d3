"""Data, not code: devices, cloud instances, models, with a source per figure. `read` returns one file, parsed once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # what yaml.safe_load uses, compiled where available


@cache
def read(name: str) -> Any:
    """Return the parsed contents of a catalogue file such as ``devices.yaml``; treat it as read-only."""
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
