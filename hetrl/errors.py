"""Errors that a user may see, each with its exit code.

Everything raised on purpose derives from :class:`HetrlError`; the command line turns it into a message
without a traceback and exits with :attr:`HetrlError.exit_code`. Anything else is a defect of hetrl.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXIT_OK = 0
EXIT_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_RUNTIME = 4
EXIT_INTERRUPTED = 130


class HetrlError(Exception):
    """Base of all errors that are part of the product."""

    exit_code = EXIT_RUNTIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with an input.

    Parameters
    ----------
    path
        Where it is, e.g. ``cluster_topology.nodes[0].gpus``.
    found
        What stands there, as the user wrote it.
    message
        What is wrong with it.
    rule
        Identifier of the violated rule, e.g. ``TP_KV_HEADS``; ``INPUT`` for anything else.
    valid
        What would be valid, in words; empty if unknown.
    """

    path: str
    message: str
    found: str = ""
    rule: str = "INPUT"
    valid: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        if self.found:
            text += f" (found: {self.found})"
        if self.valid:
            text += f"; valid: {self.valid}"
        return text if self.rule == "INPUT" else f"{text} [{self.rule}]"


class SpecError(HetrlError):
    """The input is wrong. Carries every problem found, not only the first."""

    exit_code = EXIT_INPUT

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotSupported(SpecError):
    """A valid wish that this version of hetrl does not carry out; the message names it."""


class InfeasibleError(HetrlError):
    """No plan satisfies the constraints.

    Parameters
    ----------
    message
        The binding limit in one sentence.
    reasons
        Further lines: the dominant term of each task, and the smallest changes that would make it feasible.
    """

    exit_code = EXIT_INFEASIBLE

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join((message, *(f"  - {reason}" for reason in reasons))))


class UnmeasuredError(HetrlError):
    """A figure is needed that nobody measured, fitted or published."""

    exit_code = EXIT_INPUT


class RunError(HetrlError):
    """A launched run failed: a worker died, a resource disappeared."""

    exit_code = EXIT_RUNTIME


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return ``"did you mean 'a' or 'b'?"`` for the closest known words, or an empty string.

    Case is ignored when comparing.
    """
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=limit, cutoff=0.6)
    if not close:
        return ""
    return "did you mean " + " or ".join(f"'{by_folded[name]}'" for name in close) + "?"
