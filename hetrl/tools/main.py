"""The `hetrl` command: one table of subcommands; only the chosen one's module is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import hetrl
from hetrl.errors import EXIT_INPUT, EXIT_OK, did_you_mean
from hetrl.tools.cli import guarded, run_command

COMMANDS = {
    "plan": ("hetrl.tools.plan", "search the best plan for a job and write plan.json"),
    "launch": ("hetrl.tools.launch", "run a plan on Ray, vLLM and torch"),
    "profile": ("hetrl.tools.profile", "measure this machine's devices and links"),
    "fit": ("hetrl.tools.fit", "fit cost coefficients to measurements"),
    "predict": ("hetrl.tools.predict", "predict the time of single operations"),
    "refit": ("hetrl.tools.refit", "fold a run's measurements into the coefficients"),
    "validate": ("hetrl.tools.validate", "check a job file or a plan, every problem at once"),
    "memory": ("hetrl.tools.memory", "show what a plan keeps in memory, device by device"),
    "devices": ("hetrl.tools.devices", "list or describe the device types hetrl knows"),
    "models": ("hetrl.tools.models", "list or describe the models hetrl knows"),
    "estimate": ("hetrl.tools.estimate", "cost a plan written by hand"),
    "certify": ("hetrl.tools.certify", "check the certificate of an exact plan"),
    "explain": ("hetrl.tools.explain", "say why a plan is as it is"),
    "doctor": ("hetrl.tools.doctor", "say which parts work in this environment"),
}


def usage() -> str:
    """Return the text of ``hetrl --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        (
            "usage: hetrl COMMAND [ARGUMENTS]",
            "",
            "Plan and run reinforcement-learning post-training of LLMs on mixed fleets.",
            "",
            *lines,
            "",
            "hetrl COMMAND --help says more. hetrl --version prints the version.",
            "Exit codes: 0 done, 2 wrong input, 3 nothing feasible, 4 the run failed, an extra is missing or the",
            "output cannot be written, 130 interrupted, 141 the reader of the output went away.",
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl COMMAND ...`` and return its exit code.

    Parameters
    ----------
    argv
        Everything after ``hetrl``; None takes it from ``sys.argv``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, *rest = arguments or [""]
    if name in COMMANDS:
        return guarded(lambda: _run(name, rest), prog=f"hetrl {name}")
    return guarded(lambda: _answer(name), prog="hetrl")


def _answer(name: str) -> int:
    """Answer what is no command."""
    if name in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK
    if name == "--version":
        print(f"hetrl {hetrl.__version__}")
        return EXIT_OK
    hint = did_you_mean(name, COMMANDS) or "hetrl --help lists the commands"
    print(f"hetrl: no command '{name}'; {hint}" if name else usage(), file=sys.stderr)
    return EXIT_INPUT


def _run(name: str, arguments: Sequence[str]) -> int:
    module = importlib.import_module(COMMANDS[name][0])
    return run_command(module.add_arguments, module.run, arguments, prog=f"hetrl {name}", description=module.__doc__)


if __name__ == "__main__":
    sys.exit(main())
