"""Progress on the terminal: one bar, silent where the terminal is none."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """A bar over the points of all stages; use as a context."""

    def __init__(self, device: str, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bars = Bars(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console, transient=True, disable=quiet or not self._console.is_terminal,
        )  # fmt: skip
        self._bar = self._bars.add_task(device, total=0)
        self._device = device

    def expect(self, number: int) -> None:
        """Add points to the total."""
        self._bars.update(self._bar, total=(self._bars.tasks[self._bar].total or 0) + number)

    def done(self, what: str) -> None:
        """One point was measured."""
        self._bars.update(self._bar, advance=1, description=f"{self._device}: {what}")

    def skip(self, number: int) -> None:
        """Points that are not measured for want of time."""
        self._bars.update(self._bar, advance=number)

    def say(self, what: str) -> None:
        """Show what is going on before the next point."""
        self._bars.update(self._bar, description=f"{self._device}: {what}")

    def __enter__(self) -> Progress:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)
