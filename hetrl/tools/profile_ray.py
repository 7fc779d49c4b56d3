"""`hetrl profile --ray`: one task per distinct device type of the running Ray, and two per class of link between nodes.

A class of link is a pair of device types; one pair of nodes stands for it. Known to work with CPU nodes of one Ray;
not tried on a cluster of GPUs yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from hetrl.errors import EXIT_OK, Problem, RunError, SpecError
from hetrl.tools.profile import words_of
from hetrl_profiler.links import LinkSample, Ranks, free_port, run_rank

TYPE_PREFIX = "gpu_type:"
"""Ray resource that names the device type of a node."""
LINK_OPERATIONS = ("send", "all_reduce")


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A living node: its type (empty where the task itself has to find out), and what a task there must ask for."""

    id: str
    address: str
    type: str
    kind: str
    resources: dict[str, float]


def ray_nodes(nodes: Sequence[dict[str, Any]]) -> list[RayNode]:
    """Nodes that can be profiled.

    A node with a resource ``gpu_type:NAME`` is of that type; other nodes with GPUs are grouped by Ray's own label, and
    the driver tells the task which card it has got; nodes without any are CPUs.
    """
    found = []
    for node in nodes:
        resources = node.get("Resources", {})
        if not node.get("Alive"):
            continue
        named = [name for name in resources if name.startswith(TYPE_PREFIX)]
        labels = [name for name in resources if name.startswith("accelerator_type:")]
        gpus = {"GPU": 1.0} if resources.get("GPU", 0) >= 1 else {}
        if not named and not gpus and resources.get("CPU", 0) < 1:
            continue
        asked = {named[0]: 1.0} if named else {}
        name = (
            named[0].removeprefix(TYPE_PREFIX) if named else (labels[0] if labels and gpus else "GPU" if gpus else "")
        )
        found.append(
            RayNode(
                id=str(node["NodeID"]), address=str(node["NodeManagerAddress"]), type=name,
                kind="cuda" if gpus else "cpu", resources={**asked, **gpus},
            )
        )  # fmt: skip
    return found


def one_per_type(nodes: Sequence[RayNode]) -> dict[str, RayNode]:
    """Device type -> the first node of it."""
    first: dict[str, RayNode] = {}
    for node in nodes:
        first.setdefault(node.type, node)
    return first


def link_pairs(nodes: Sequence[RayNode]) -> list[tuple[RayNode, RayNode]]:
    """Two nodes for every pair of device types that has two, equal types included."""
    members: dict[str, list[RayNode]] = {}
    for node in nodes:
        members.setdefault(node.type, []).append(node)
    pairs = []
    for a, b in combinations_with_replacement(sorted(members), 2):
        if a != b:
            pairs.append((members[a][0], members[b][0]))
        elif len(members[a]) > 1:
            pairs.append((members[a][0], members[a][1]))
    return pairs


def profile_cluster(args: argparse.Namespace) -> int:
    """Profile one node of every device type and every class of link; append what comes back to ``args.out``."""
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
        nodes = ray_nodes(ray.nodes())  # type: ignore[no-untyped-call]
        names = _profile_devices(args, nodes)
        stages = set(args.stage or ("links",)) - set(args.skip)
        if "links" in stages:
            for a, b in link_pairs(nodes):
                _profile_link(args.out, a, b, names)
    finally:
        ray.shutdown()
    return EXIT_OK


def _profile_devices(args: argparse.Namespace, nodes: Sequence[RayNode]) -> dict[str, str]:
    """Profile a node of every type; return the name under which each type was recorded."""
    import ray

    waiting = {
        node.type: _on(node, ray.remote(_profile_here)).remote(
            [*words_of(args), "--quiet"], node.type if TYPE_PREFIX + node.type in node.resources else ""
        )
        for node in one_per_type(nodes).values()
    }
    names = {}
    for kind, reference in waiting.items():
        code, text, complaint = ray.get(reference)
        if code:
            raise RunError(f"profiling {kind or 'the CPU'} failed with exit code {code}: {complaint}")
        lines = [json.loads(line) for line in text.splitlines()]  # whole lines only
        with args.out.open("a", encoding="utf-8") as file:
            file.write(text)
        names[kind] = str(lines[0]["device_type"]) if lines else kind
        print(f"{names[kind]}: {len(lines)} measurements in {args.out}")
    return names


def _profile_link(out: Path, a: RayNode, b: RayNode, names: dict[str, str]) -> None:
    """Two tasks, one on each node: messages and all-reduces between them."""
    import ray

    from hetrl.measure import MeasurementStore
    from hetrl_profiler.accelerators import HostLink
    from hetrl_profiler.described import NETWORK
    from hetrl_profiler.links import GPU_SIZES, SIZES
    from hetrl_profiler.profile import link_measurements
    from hetrl_profiler.recorder import PROFILE

    kind = "cuda" if a.kind == b.kind == "cuda" else "cpu"
    sizes = GPU_SIZES if kind == "cuda" else SIZES
    places = (0, 0) if kind == "cuda" or a.address != b.address else (0, 1)
    ranks = Ranks(kind=kind, places=places, operations=LINK_OPERATIONS, sizes=sizes)
    port: int = ray.get(_on(a, ray.remote(free_port)).remote())
    waiting = [
        _on(node, ray.remote(_rank_here)).remote(rank, ranks, a.address, port) for rank, node in enumerate((a, b))
    ]
    samples: list[LinkSample] = ray.get(waiting)[0]
    store = MeasurementStore(out, labels={"source": PROFILE, "device_kind": kind})
    labels = {"implementation": "nccl" if kind == "cuda" else "gloo", "peer": names[b.type]}
    store.append(link_measurements(store, names[a.type], samples, HostLink(NETWORK, 0.0), labels))
    print(f"{names[a.type]} to {names[b.type]}: {len(samples)} measurements in {out}")


def _on(node: RayNode, task: Any) -> Any:
    """Put a remote function on a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resources = dict(node.resources)
    return task.options(
        num_cpus=1,
        num_gpus=resources.pop("GPU", 0),
        resources=resources,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    )


def _rank_here(rank: int, ranks: Ranks, host: str, port: int) -> list[LinkSample]:
    return run_rank(rank, ranks, host, port)


def _profile_here(words: list[str], device_name: str) -> tuple[int, str, str]:
    """Run the command on this node; return its exit code, the measurements, and the end of its complaints."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measurements.jsonl"
        command = [sys.executable, "-m", "hetrl.tools.profile", "--out", str(out), *words]
        command += ["--device-name", device_name] if device_name else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        return done.returncode, text, done.stderr[-2000:]
