"""The demo's reward: how much of the response is lower-case letters, from 0 to 1.

A random model writes about one in ten; a trained one nearly all.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_lowercase
from typing import Any


def lower_case(prompt: Mapping[str, Any], response: str) -> float:
    """Share of lower-case letters among the response's characters; 0 for an empty response."""
    if not response:
        return 0.0
    return sum(character in ascii_lowercase for character in response) / len(response)
