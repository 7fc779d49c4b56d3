"""Measure this machine's devices and links, and append what was measured to a file.

Operators (matrix products, attention, memory-bound work) come from shapes that fill the space of sizes; with --model
also generation, scoring, training and loading of weights, as a run does them. --full adds norms, the optimizer step,
copies between host and device, and sends and collectives among the devices of this machine. A CPU device is one core;
of several kinds of GPUs each is profiled. What the file holds already is not measured again, so an interrupted profile
is taken up by the same command. `hetrl fit` turns the file into a cost model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.files import check_appendable
from hetrl.tools.cli import run_command

STAGES = ("operators", "optimizer", "train", "engine", "copies", "links")


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
    size.add_argument("--quick", action="store_true", help="60 operator shapes, under a minute (the default)")
    size.add_argument("--full", action="store_true", help="all stages, about 1,000 operator shapes, tens of minutes")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "gpu"), default="auto", help="default: GPUs if there are any"
    )
    parser.add_argument("--core", type=int, help="CPU core to profile (default: the first allowed)")
    parser.add_argument(
        "--dtype", nargs="+", metavar="DTYPE",
        help="fp32, bf16, fp16; the first for all stages, further ones for operators (default: fp32, on a GPU bf16)",
    )  # fmt: skip
    parser.add_argument("--responses-per-prompt", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this stage (may be repeated)")
    parser.add_argument("--skip", action="append", default=[], choices=STAGES, help="leave a stage out")
    parser.add_argument("--wait", action="store_true", help="load, print 'ready', and measure after a line on stdin")
    parser.add_argument("--ray", action="store_true", help="profile every device type of the running Ray, a task each")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Profile."""
    from hetrl_profiler.device import gpu_kinds, set_environment

    if args.responses_per_prompt < 1:
        raise SpecError(Problem(path="--responses-per-prompt", message="must be at least 1"))
    check_appendable(args.out)
    set_environment()
    if args.ray:
        from hetrl.tools.profile_ray import profile_cluster

        return profile_cluster(args)
    on_gpu = args.device == "gpu" or (args.device == "auto" and _has_gpu())
    kinds = gpu_kinds() if on_gpu else []
    if args.device == "gpu" and not kinds:
        raise SpecError(Problem(path="--device", message="torch sees no GPU here", found="gpu", valid="cpu"))
    if len(kinds) > 1:
        return max(_profile_one_kind(args, kind) for kind in kinds)
    for number, dtype in enumerate(args.dtype or [None]):
        _profile(args, dtype, on_gpu=on_gpu, is_first=number == 0)
    return EXIT_OK


def _profile(args: argparse.Namespace, dtype: str | None, *, on_gpu: bool, is_first: bool) -> None:
    from hetrl_profiler.described import slowdown_lines
    from hetrl_profiler.device import cpu_core, gpu
    from hetrl_profiler.points import FULL, QUICK
    from hetrl_profiler.profile import Request, profile

    device = gpu(0, args.device_name, dtype) if on_gpu else cpu_core(args.device_name, dtype or "fp32", args.core)
    request = Request(
        device=device,
        out=args.out,
        budget=FULL if args.full else QUICK,
        model_folder=args.model if is_first else None,
        responses_per_prompt=args.responses_per_prompt,
        stages=tuple(args.stage) if args.stage else None,
        quiet=args.quiet,
    )
    stages = [stage for stage in request.chosen_stages if stage not in args.skip and (is_first or stage == "operators")]
    recorder = profile(replace(request, stages=stages), when_ready=_wait if args.wait and is_first else None)
    for text in recorder.impossible:
        print(f"hetrl profile: faster than the device can be, left out: {text}", file=sys.stderr)
    for line in slowdown_lines(recorder.stored):
        print(line)
    print(f"{device.name} {device.dtype}: {len(recorder.stored)} measurements in {args.out}")


def _profile_one_kind(args: argparse.Namespace, gpus: Sequence[int]) -> int:
    """Run the same command with these GPUs alone."""
    shown = ",".join(map(str, gpus))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": shown, "HIP_VISIBLE_DEVICES": shown}
    command = [sys.executable, "-m", "hetrl.tools.profile", "--out", str(args.out), "--device", "gpu", *words_of(args)]
    child = subprocess.Popen(command, env=environment)
    try:
        return child.wait()
    except KeyboardInterrupt:  # the child got it too, and stores what it has
        child.wait()
        raise


def words_of(args: argparse.Namespace) -> list[str]:
    """Say how much is profiled as words of the command line; not which device, nor where to write."""
    words = ["--full" if args.full else "--quick", "--responses-per-prompt", str(args.responses_per_prompt)]
    words += [word for stage in args.stage or () for word in ("--stage", stage)]
    words += [word for stage in args.skip for word in ("--skip", stage)]
    words += ["--dtype", *args.dtype] if args.dtype else []
    words += ["--model", str(args.model)] if args.model is not None else []
    return words + (["--quiet"] if args.quiet else [])


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
