"""The rich console of commands that print with rich."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that leaves a closed pipe to `hetrl.tools.cli.guarded`, where rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Let the BrokenPipeError that is being handled go on."""
        raise
