"""What every command shares: arguments in, exit code out.

A command is one module of :mod:`hetrl.tools` with three functions::

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(args: argparse.Namespace) -> int: ...
    def main(argv: Sequence[str] | None = None) -> int:
        return run_command(add_arguments, run, argv, prog="hetrl plan", description=__doc__)

and ``if __name__ == "__main__": sys.exit(main())`` at its end.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence

from hetrl.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUNTIME, HetrlError
from hetrl.tools.streams import OUTPUT_ERROR, discard_output, output_error, prepare_streams, say

EXIT_DEFECT = 1
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for `hetrl ... | head`

_EXTRA_OF_PACKAGE = {
    "ray": "ray",
    "torch": "profile",
    "transformers": "ray",
    "vllm": "ray",
    "safetensors": "ray",
    "tensorboard": "ray",
    "joblib": "profile",
    "psutil": "profile",
    "scipy": "profile",
    "sklearn": "profile",
    "highspy": "highs",
    "boto3": "aws",
    "numba": "sweeps",
    "aiconfigurator_core": "measured",
}


def run_command(
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str | None,
) -> int:
    """Parse `argv`, run a command, and turn what it raises into a message and an exit code.

    Parameters
    ----------
    add_arguments
        Declares the command's arguments on the parser.
    run
        Does the work with the parsed arguments and returns the exit code.
    argv
        The arguments after the command's name; None takes them from ``sys.argv``.
    prog
        The command as the user types it, for the usage text.
    description
        The command module's docstring; shown by ``--help``.

    Returns
    -------
    int
        What `run` returned; 2 for wrong arguments; the error's own code for a
        :class:`~hetrl.errors.HetrlError`, whose message goes to stderr; 4 when the command needs an extra that is
        not installed or the output cannot be written; 130 when interrupted; 141 when the reader of the output went
        away; 1, after a traceback, for anything else: a defect of hetrl.
    """
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)

    def parse_and_run() -> int:
        try:
            args = parser.parse_args(argv)
        except SystemExit as stop:  # argparse has printed its message or the help
            return stop.code if isinstance(stop.code, int) else EXIT_INPUT
        return run(args)

    return guarded(parse_and_run, prog=prog)


def guarded(action: Callable[[], int], *, prog: str) -> int:
    """Run `action` and return its exit code, or the one that belongs to what it raised (see :func:`run_command`)."""
    prepare_streams()
    code = _code_of(action, prog)
    error = output_error()
    if error is None:
        return code
    discard_output()
    if isinstance(error, BrokenPipeError):
        return code or EXIT_BROKEN_PIPE
    say(f"{prog}: {OUTPUT_ERROR}: {error.strerror}")
    return code or EXIT_RUNTIME


def _code_of(action: Callable[[], int], prog: str) -> int:
    try:
        return action()
    except HetrlError as error:
        say(f"{prog}: {_described(error)}")
        return error.exit_code
    except KeyboardInterrupt:
        say(f"{prog}: interrupted")
        _forget_interrupt()
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_PACKAGE.get((error.name or "").partition(".")[0])
        if extra is None:
            return _defect(prog)
        say(f"{prog}: needs {error.name}, which is not installed; pip install 'hetrl[{extra}]'")
        return EXIT_RUNTIME
    except OSError:
        return _defect(prog) if output_error() is None else EXIT_OK  # the output's own failure: `guarded` says it
    except Exception:
        return _defect(prog)


def _forget_interrupt() -> None:
    """Make the exit code that of the command, also where Ctrl-C hit code in a string.

    CPython remembers a KeyboardInterrupt that leaves ``exec`` of a string, which dataclasses use, and ``python -m``
    then ends by SIGINT whatever the exit code, although the exception was handled; the next such call forgets it.
    """
    exec("")


def _defect(prog: str) -> int:
    say(f"{traceback.format_exc()}{prog}: this is a defect of hetrl, not of your input; please report it")
    return EXIT_DEFECT


def _described(error: HetrlError) -> str:
    """Return the error's message; several lines stand below the command's name, one stands beside it."""
    text = str(error) or type(error).__name__
    lines = text.splitlines()
    return text if len(lines) == 1 else "\n  ".join(("error:", *lines))
