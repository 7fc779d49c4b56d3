"""The standard streams, made safe: what a terminal cannot show, a full disk and a closed pipe are no defects."""

from __future__ import annotations

import errno
import io
import os
import sys

OUTPUT_ERROR = "the output cannot be written"


class Output(io.TextIOWrapper):
    """Stdout that remembers why it could not be written: an OSError of its own does not say whose it is."""

    error: OSError | None = None

    def write(self, text: str, /) -> int:
        """Write, and remember a failure."""
        try:
            return super().write(text)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Flush, and remember a failure."""
        try:
            super().flush()
        except OSError as error:
            self.error = error
            raise


class ClosedOutput(io.TextIOBase):
    """Stands for a stdout that was closed before the start: who prints to it hears of it when it is flushed."""

    def __init__(self) -> None:
        self._written = False

    def write(self, text: str) -> int:
        """Take text as a buffer does."""
        self._written = self._written or bool(text)
        return len(text)

    def flush(self) -> None:
        """Fail if there was anything to show."""
        if self._written:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def prepare_streams() -> None:
    """Show '?' for what stdout's encoding lacks, and give closed streams a stand-in.

    The descriptors of closed streams are taken by the null device, or the next file opened would be the output.
    """
    if sys.stdout is None or sys.stderr is None:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
        sys.stdout = sys.stdout or ClosedOutput()
        sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        sys.stdout = Output(
            sys.stdout.buffer,
            encoding=sys.stdout.encoding,
            errors="replace",
            line_buffering=sys.stdout.line_buffering,
            write_through=sys.stdout.write_through,
        )


def output_error() -> OSError | None:
    """Return why stdout could not be written, or cannot be flushed now; None if all is well."""
    if isinstance(sys.stdout, Output) and sys.stdout.error is not None:
        return sys.stdout.error
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def discard_output() -> None:
    """Let whatever stdout still holds go to the null device, so that the interpreter's last flush succeeds."""
    if isinstance(sys.stdout, ClosedOutput):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return
    if isinstance(sys.stdout, Output):
        sys.stdout.error = None
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def say(text: str) -> None:
    """Print to stderr; if that cannot be written either, the exit code has to do."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


def shows(characters: str) -> bool:
    """Whether stdout's encoding has these characters."""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
