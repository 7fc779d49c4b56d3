"""`hetrl profile --ray`: one task per distinct device type of the running Ray, their measurements in one file.

Not tried on a cluster of GPUs yet: here it is known to work with CPU nodes of one Ray only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hetrl.errors import EXIT_OK, Problem, RunError, SpecError

TYPE_PREFIX = "gpu_type:"
"""Ray resource that names the device type of a node."""


def device_types(nodes: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Device type -> what a task must ask for to run on a node of it.

    A node with a resource ``gpu_type:NAME`` is of that type; other nodes with GPUs are grouped by Ray's own label, and
    NVML or torch tells the task which card it has got; nodes without any are CPUs.
    """
    found: dict[str, dict[str, float]] = {}
    for node in nodes:
        if not node.get("Alive"):
            continue
        resources = node["Resources"]
        named = [name for name in resources if name.startswith(TYPE_PREFIX)]
        labels = [name for name in resources if name.startswith("accelerator_type:")]
        gpus = {"GPU": 1.0} if resources.get("GPU", 0) >= 1 else {}
        if named:
            found[named[0].removeprefix(TYPE_PREFIX)] = {named[0]: 1.0, **gpus}
        elif gpus:
            found[labels[0] if labels else "GPU"] = {**gpus, **({labels[0]: 0.001} if labels else {})}
        elif resources.get("CPU", 0) >= 1:
            found.setdefault("", {})
    return found


def profile_cluster(args: argparse.Namespace) -> int:
    """Run the profile on one node of every device type and append what comes back to ``args.out``."""
    import ray

    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError) as error:
        raise SpecError(
            Problem(
                path="--ray", message="no Ray is running there", found=address, valid="a running Ray; see RAY_ADDRESS"
            )
        ) from error
    try:
        words = [*(["--full"] if args.full else ["--quick"]), "--quiet"]
        words += [word for stage in args.skip for word in ("--skip", stage)]
        words += ["--dtype", args.dtype] if args.dtype else []
        words += ["--model", str(args.model)] if args.model is not None else []
        task = ray.remote(_profile_here)
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        waiting = {
            name: task.options(num_cpus=1, resources={key: value for key, value in need.items() if key != "GPU"},
                               num_gpus=need.get("GPU", 0)).remote(words, name if TYPE_PREFIX + name in need else "")
            for name, need in device_types(nodes).items()
        }  # fmt: skip
        for name, reference in waiting.items():
            code, text, complaint = ray.get(reference)
            if code:
                raise RunError(f"profiling {name or 'the CPU'} failed with exit code {code}: {complaint}")
            for line in text.splitlines():
                json.loads(line)  # whole lines only
            with args.out.open("a", encoding="utf-8") as file:
                file.write(text)
            print(f"{name or 'CPU'}: {len(text.splitlines())} measurements in {args.out}")
    finally:
        ray.shutdown()
    return EXIT_OK


def _profile_here(words: list[str], device_name: str) -> tuple[int, str, str]:
    """Run the command on this node; return its exit code, the measurements, and the end of its complaints."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measurements.jsonl"
        command = [sys.executable, "-m", "hetrl.tools.profile", "--out", str(out), *words]
        command += ["--device-name", device_name] if device_name else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        return done.returncode, text, done.stderr[-2000:]
