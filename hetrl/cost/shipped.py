"""The data files that ship beside the fitted models, parsed once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent.parent / "catalog" / "fitted"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def read_shipped(name: str) -> Any:
    """Return the parsed contents of a file such as ``chips.yaml``; treat it as read-only."""
    return yaml.load((FOLDER / name).read_text(encoding="utf-8"), Loader=_Loader)
