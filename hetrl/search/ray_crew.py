"""Lanes of the search as actors on a Ray cluster; imported only where asked for (extra ``ray``)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError

from hetrl.search.constraints import NodeRules
from hetrl.search.crew import Lanes, LostLane, Work


class _Lane:
    """A lane on one CPU of the cluster."""

    def __init__(self, rules: NodeRules) -> None:
        self.rules = rules

    def run(self, work: Work[Any, Any], item: object) -> Any:
        return work(self.rules, item)

    def counters(self) -> Counter[str]:
        return self.rules.context.work()


class RayCrew(Lanes[Any]):
    """Lanes on a Ray cluster.

    Parameters
    ----------
    rules
        Context and constraints; every lane lowers the job for itself.
    address
        Of the cluster, e.g. ``auto``; empty starts Ray on this machine, unless this process is connected already.
    num_lanes
        How many; 0 takes one for every CPU of the cluster.
    """

    def __init__(self, rules: NodeRules, address: str, num_lanes: int = 0) -> None:
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(
                address=address or None, log_to_driver=False, logging_level=logging.WARNING, include_dashboard=False
            )
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        shared = ray.put(rules)
        maker = ray.remote(num_cpus=1)(_Lane)
        super().__init__([maker.remote(shared) for _ in range(min(num_lanes or cpus, cpus))], rules)
        self._running: dict[Any, Any] = {}

    def give(self, lane: Any, work: Work[Any, Any], item: object) -> None:
        """Begin an item in an actor."""
        self._running[lane.run.remote(work, item)] = lane

    def first_done(self, busy: Sequence[Any]) -> tuple[Any, Any]:
        """Wait for the actors."""
        done, _ = ray.wait(list(self._running), num_returns=1)
        lane = self._running.pop(done[0])
        try:
            return lane, ray.get(done[0])
        except RayActorError as error:
            raise LostLane(lane) from error

    def close(self) -> None:
        """Collect the counters, end the actors, and leave Ray if it was started here."""
        if not self._running:
            for lane in self.handles:
                with suppress(RayActorError):  # killed while it had nothing to do
                    self.work.update(ray.get(lane.counters.remote()))
        for lane in self.handles:
            ray.kill(lane)
        self.handles = []
        if self._started:
            ray.shutdown()
            self._started = False
