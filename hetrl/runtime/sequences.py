"""What flows between the workers: prompts, sampled sequences, and the timing of a phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a step: its position in the prompts file and its text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSequence:
    """One response to one prompt.

    Parameters
    ----------
    prompt_index
        Position of the prompt in the prompts file.
    prompt_tokens, response_tokens
        Token ids, shapes (P,) and (R,).
    engine_log_probs
        Log-probability of each response token as the engine sampled it, shape (R,).
    text
        The response decoded, without special tokens.
    """

    prompt_index: int
    prompt_tokens: NDArray[np.int64]
    response_tokens: NDArray[np.int64]
    engine_log_probs: NDArray[np.float32]
    text: str

    @property
    def num_tokens(self) -> int:
        """Prompt and response."""
        return len(self.prompt_tokens) + len(self.response_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSequence:
    """A sampled sequence with what the loss needs.

    Parameters
    ----------
    sequence
        The tokens.
    advantage
        Group-normalised advantage, the same for every response token.
    reference_log_probs
        Log-probabilities of the response under the reference policy, shape (R,); None without a reference.
    """

    sequence: SampledSequence
    advantage: float
    reference_log_probs: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTiming:
    """One phase as the worker that ran it saw it.

    Parameters
    ----------
    phase
        E.g. ``generate``, ``forward_backward``, ``all_reduce``.
    seconds
        Wall time, waiting for others excluded unless the phase is the waiting.
    peak_bytes
        Peak resident memory of the worker during the phase.
    amounts
        Amounts of work, SI units in the name.
    """

    phase: str
    seconds: float
    peak_bytes: int
    amounts: Mapping[str, float] = field(default_factory=dict)


def split_by_shares(items: Sequence[Item], shares: Sequence[int], per_share: int = 1) -> list[list[Item]]:
    """Cut ``items`` into consecutive parts of ``share * per_share`` items.

    >>> split_by_shares("aabbcc", [2, 1], per_share=2)
    [['a', 'a', 'b', 'b'], ['c', 'c']]
    """
    if sum(shares) * per_share != len(items):
        raise ValueError(f"shares {list(shares)} of {per_share} do not add up to {len(items)} items")
    parts: list[list[Item]] = []
    start = 0
    for share in shares:
        end = start + share * per_share
        parts.append(list(items[start:end]))
        start = end
    return parts


def split_evenly(num_items: int, num_parts: int) -> list[int]:
    """Return part sizes that differ by at most one, larger ones first.

    >>> split_evenly(7, 3)
    [3, 2, 2]
    """
    quotient, remainder = divmod(num_items, num_parts)
    return [quotient + (part < remainder) for part in range(num_parts)]
