"""A Ray cluster to run on: the user's, joined by address, or one of our own on this machine.

Our own listens on the loopback interface only, lives in a temporary folder, and leaves nothing behind. It has one
logical node per node of the plan, as far as this machine really has the devices: CPU devices; accelerators need a
Ray cluster that the user started with ``--resources='{"hetrl_device:<type>": <count>}'``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetrl.errors import RunError, SpecError
from hetrl.runtime.guard import FOLDER_VARIABLE, Guard
from hetrl.runtime.placement import RESOURCE_PREFIX, NodeNeed, placement_problems
from hetrl.runtime.worker import ENVIRONMENT
from hetrl.spec.topology import Topology

READY_TIMEOUT_SECONDS = 120.0
_OBJECT_STORE_BYTES = 128 * 1024**2
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
}


class OwnRay:
    """Ray's services on this machine: a head node and more, in a folder of their own, with a guard."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hetrl-ray-", dir="/tmp"))  # Unix sockets need a short path
        (self.folder / "ray").mkdir()
        self._guard = Guard(self.folder)
        self._cluster: Any = None

    def environment(self) -> contextlib.AbstractContextManager[None]:
        """Variables that Ray's services get."""
        return _environment({**_QUIET, FOLDER_VARIABLE: str(self.folder)})

    def add_node(self, resources: Mapping[str, float]) -> None:
        """Start a logical node; the first is the head."""
        from ray.cluster_utils import Cluster

        options: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": 0,
            "resources": dict(resources),
            "object_store_memory": _OBJECT_STORE_BYTES,
            "node_ip_address": "127.0.0.1",
            "include_dashboard": False,
        }
        if self._cluster is None:
            self._cluster = Cluster(initialize_head=True, head_node_args={**options, "include_log_monitor": False})
        else:
            self._cluster.add_node(**options)

    @property
    def address(self) -> str:
        """Where the head answers."""
        return str(self._cluster.address)

    def close(self) -> None:
        """End the services and remove the folder."""
        with self.environment():
            if self._cluster is not None:
                self._cluster.shutdown()
        self._guard.dismiss()


class RayCluster:
    """A connection to Ray with one placement group that holds the plan's devices.

    Use :func:`join` or :func:`start`.
    """

    def __init__(self, needs: Sequence[NodeNeed], own: OwnRay | None = None) -> None:
        self._needs = tuple(needs)
        self._own = own
        self._group: Any = None

    @property
    def is_own(self) -> bool:
        """Whether this cluster was started by us, on loopback."""
        return self._own is not None

    def reserve(self) -> None:
        """Check that the devices exist, then take them.

        Raises
        ------
        SpecError
            If Ray does not have them at all.
        RunError
            If they exist but stay busy.
        """
        import ray
        from ray.util.placement_group import placement_group

        problems = placement_problems(self._needs, offers_of_ray(ray.nodes()))  # type: ignore[no-untyped-call]
        if problems:
            raise SpecError(problems)
        self._group = placement_group([need.bundle for need in self._needs], strategy="STRICT_SPREAD")
        if not self._group.wait(READY_TIMEOUT_SECONDS):
            raise RunError(
                f"Ray did not free the plan's devices within {READY_TIMEOUT_SECONDS:.0f} s; are others using them?"
            )

    def hosts(self) -> list[str]:
        """Address of the host of every bundle."""
        import ray
        from ray.util.placement_group import placement_group_table

        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}  # type: ignore[no-untyped-call]
        return [address[nodes[bundle]] for bundle in range(len(self._needs))]

    def actor(self, kind: type, bundle: int, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Start a worker in a bundle; returns the Ray actor's handle."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        environment = dict(ENVIRONMENT)
        if self.is_own:
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        return (
            ray.remote(kind)
            .options(
                num_cpus=0,
                max_restarts=0,
                runtime_env={"env_vars": environment},
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
            )
            .remote(*arguments, **keywords)
        )

    def save_logs(self, target: Path) -> None:
        """Copy the workers' output of our own cluster to ``target``."""
        if self._own is None:
            return
        for log in self._own.folder.glob("ray/session_2*/logs/worker-*"):
            if log.stat().st_size:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(log, target / log.name)

    def close(self) -> None:
        """Give the devices back, disconnect, and end what we started."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if ray.is_initialized():
            if self._group is not None:
                with contextlib.suppress(ray.exceptions.RayError):  # the cluster may be gone already
                    remove_placement_group(self._group)
            ray.shutdown()
        if self._own is not None:
            self._own.close()
            self._own = None


def join(address: str, needs: Sequence[NodeNeed]) -> RayCluster:
    """Connect to a running Ray.

    Raises
    ------
    RunError
        If nothing answers there.
    """
    import ray

    with _environment(_QUIET), _own_sigterm():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(f"no Ray answers at {address}: {error}") from error
    return RayCluster(needs)


def start(needs: Sequence[NodeNeed]) -> RayCluster:
    """Start a Ray of our own on this machine, with a logical node for each of ``needs``.

    Check first that this machine has the devices: :func:`offers_of_this_machine`.
    """
    import ray

    own = OwnRay()
    try:
        with own.environment(), _loopback(), _own_sigterm():
            for need in needs:
                own.add_node(need.bundle)
            ray.init(
                address=own.address, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level=logging.ERROR
            )
    except BaseException:
        own.close()
        raise
    return RayCluster(needs, own)


def offers_of_ray(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Devices per living node, from ``ray.nodes()``."""
    return [
        {
            name.removeprefix(RESOURCE_PREFIX): int(count)
            for name, count in node["Resources"].items()
            if name.startswith(RESOURCE_PREFIX)
        }
        for node in nodes
        if node["Alive"]
    ]


def offers_of_this_machine(needs: Sequence[NodeNeed], topology: Topology) -> list[dict[str, int]]:
    """Return what a cluster of our own can offer: the plan's CPU devices."""
    return [
        {need.device_type: len(need.devices)} for need in needs if topology.nodes[need.node].device_type.vendor == "cpu"
    ]


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Keep Ray from replacing 127.0.0.1 by an address that others can reach; its switch for that is set on import."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's SIGTERM handler: Ray replaces it by one that aborts."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
