"""Measure this machine's devices and links, and append what was measured to a file.

Operators (matrix products, attention, memory-bound work) come from shapes that fill the space of sizes; with --model
also generation, scoring, training and loading of weights, as a run does them. A CPU device is one core. What the file
holds already is not measured again, so an interrupted profile is taken up by the same command. `hetrl fit` turns the
file into a cost model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.tools.cli import run_command

STAGES = ("operators", "train", "engine", "links")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("measurements.jsonl"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--device-name", default="", metavar="NAME", help="device type to record under (default: its own)"
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="model folder; its phases are measured too")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about 100 operator shapes, under a minute (the default)")
    size.add_argument("--full", action="store_true", help="about 1,000 operator shapes, tens of minutes")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "gpu"), default="auto", help="default: GPUs if there are any"
    )
    parser.add_argument("--core", type=int, help="CPU core to profile (default: the first allowed)")
    parser.add_argument("--dtype", help="fp32, bf16 or fp16 (default: fp32 on a CPU, bf16 on a GPU)")
    parser.add_argument("--responses-per-prompt", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--skip", action="append", default=[], choices=STAGES, help="leave a stage out")
    parser.add_argument("--wait", action="store_true", help="load, print 'ready', and measure after a line on stdin")
    parser.add_argument("--ray", action="store_true", help="profile every device type of the running Ray, a task each")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Profile."""
    from hetrl_profiler.device import cpu_core, gpu, set_environment
    from hetrl_profiler.points import FULL, QUICK
    from hetrl_profiler.profile import Request, profile

    if args.responses_per_prompt < 1:
        raise SpecError(Problem(path="--responses-per-prompt", message="must be at least 1"))
    set_environment()
    if args.ray:
        from hetrl.tools.profile_ray import profile_cluster

        return profile_cluster(args)
    if args.device == "gpu" or (args.device == "auto" and _has_gpu()):
        device = gpu(0, args.device_name, args.dtype or "bf16")
    else:
        device = cpu_core(args.device_name, args.dtype or "fp32", args.core)
    recorder = profile(
        Request(
            device=device,
            out=args.out,
            budget=FULL if args.full else QUICK,
            model_folder=args.model,
            responses_per_prompt=args.responses_per_prompt,
            stages=tuple(stage for stage in STAGES if stage not in args.skip),
            quiet=args.quiet,
        ),
        when_ready=_wait if args.wait else None,
    )
    for text in recorder.impossible:
        print(f"hetrl profile: faster than the device can be, left out: {text}", file=sys.stderr)
    print(f"{device.name}: {len(recorder.stored)} measurements in {args.out}")
    return EXIT_OK


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command(add_arguments, run, argv, prog="hetrl profile", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
