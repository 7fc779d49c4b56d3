"""All workers of a run: started in their places, asked together, ended together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hetrl.errors import RunError
from hetrl.plan.plan import Plan
from hetrl.runtime.cluster import RayCluster
from hetrl.runtime.limits import TORCH_DTYPES
from hetrl.runtime.placement import Slot
from hetrl.runtime.rollout import RolloutWorker
from hetrl.runtime.score import ScoreWorker
from hetrl.runtime.sequences import PhaseTiming
from hetrl.runtime.throttle import Throttle
from hetrl.runtime.train import TrainWorker
from hetrl.spec.job import Job

_CLASSES = {"generate": RolloutWorker, "score": ScoreWorker, "train": TrainWorker}
_CLOSE_SECONDS = 15.0
_BLAME_SECONDS = 3.0
_BLOCK_TOKENS = 128  # vLLM's KV block on CPU: every sequence takes whole blocks


class Call(NamedTuple):
    """A call on its way: the worker it went to and Ray's reference to the answer."""

    slot: Slot
    reference: Any


class Workers:
    """The actors of a run, by slot.

    Parameters
    ----------
    cluster
        With the devices reserved.
    slots
        Every replica of every task.
    model_path
        The actor's folder, which is the reference's too.
    """

    def __init__(self, cluster: RayCluster, slots: Sequence[Slot], plan: Plan, job: Job, model_path: str) -> None:
        self.slots = tuple(slots)
        self._throttles: list[Throttle] = []
        hosts = cluster.hosts()
        self._host = {slot: hosts[slot.bundle] for slot in slots}
        self._actors = {
            slot: cluster.actor(
                _CLASSES[slot.kind],
                slot.bundle,
                slot.name,
                self._core_index(slot),
                model_path=model_path,
                dtype=TORCH_DTYPES[job.precision.dtype],
                **_arguments(slot, plan, job),
            )
            for slot in slots
        }
        self.process_of = dict(
            zip(
                slots,
                (each["pid"] for each in self.gather([self.call(slot, "describe") for slot in slots])),
                strict=True,
            )
        )

    def _core_index(self, slot: Slot) -> int:
        """Position of the slot's device among the devices used on its host."""
        devices = sorted({other.device for other in self.slots if self._host[other] == self._host[slot]})
        return devices.index(slot.device)

    def of_kind(self, kind: str) -> tuple[Slot, ...]:
        """Slots of one kind of task, replica by replica."""
        return tuple(slot for slot in self.slots if slot.kind == kind)

    def host_of(self, slot: Slot) -> str:
        """Address of the slot's host."""
        return self._host[slot]

    def call(self, slot: Slot, method: str, *arguments: Any, **keywords: Any) -> Call:
        """Ask a worker; the answer comes with :meth:`gather`."""
        return Call(slot, getattr(self._actors[slot], method).remote(*arguments, **keywords))

    def gather(self, calls: Sequence[Call]) -> list[Any]:
        """Wait for answers, in the order of ``calls``.

        Raises
        ------
        RunError
            As soon as one worker fails or dies; it names the worker.
        """
        import ray

        answers: dict[Any, Any] = {}
        waiting = {call.reference: call.slot for call in calls}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            slot = waiting.pop(ready)
            try:
                answers[ready] = ray.get(ready)
            except ray.exceptions.RayError as error:
                raise _blame(slot, error, waiting) from error
        return [answers[call.reference] for call in calls]

    def take_timings(self) -> list[tuple[Slot, PhaseTiming]]:
        """Phases of all workers since the last call."""
        answers = self.gather([self.call(slot, "take_timings") for slot in self.slots])
        return [(slot, timing) for slot, timings in zip(self.slots, answers, strict=True) for timing in timings]

    def throttle(self, duty_of_type: Mapping[str, float], method: str = "auto") -> dict[int, str]:
        """Slow the workers of devices from outside; return device -> what is in force. One host only."""
        found = {}
        for device, device_type in {slot.device: slot.device_type for slot in self.slots}.items():
            if device_type in duty_of_type:
                pids = [self.process_of[slot] for slot in self.slots if slot.device == device]
                self._throttles.append(Throttle(duty_of_type[device_type], pids, method))
                found[device] = self._throttles[-1].method
        return found

    def close(self) -> None:
        """End all workers: politely first, then for certain."""
        import ray

        while self._throttles:
            self._throttles.pop().close()
        references = [actor.close.remote() for actor in self._actors.values()]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(references, num_returns=len(references), timeout=_CLOSE_SECONDS)
        for actor in self._actors.values():
            ray.kill(actor)


def _arguments(slot: Slot, plan: Plan, job: Job) -> dict[str, Any]:
    task = plan.task(slot.task)
    if slot.kind == "generate":
        longest = job.batch.max_sequence_tokens
        blocks = -(-longest // _BLOCK_TOKENS) + 1
        model = job.workflow.task(slot.task).model
        kv_bytes_per_token = 2 * model.kv_bytes_per_token_bf16  # float32
        return {
            "max_model_tokens": longest,
            "max_num_sequences": task.micro_batch_size,
            "kv_cache_bytes": task.micro_batch_size * blocks * _BLOCK_TOKENS * kv_bytes_per_token,
        }
    if slot.kind == "train":
        return {"replica": slot.replica, "num_replicas": len(task.replicas)}
    return {}


def _blame(slot: Slot, error: Exception, waiting: Mapping[Any, Slot]) -> RunError:
    """Say which worker is at fault: one that died rather than one whose partner went away."""
    import ray

    if not isinstance(error, ray.exceptions.ActorDiedError):
        others, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=_BLAME_SECONDS) if waiting else ([], [])
        for reference in others:
            try:
                ray.get(reference)
            except ray.exceptions.ActorDiedError:
                return RunError(f"{waiting[reference].name} died")
            except ray.exceptions.RayError:
                continue
    if isinstance(error, ray.exceptions.ActorDiedError):
        return RunError(f"{slot.name} died")
    if isinstance(error, ray.exceptions.RayTaskError):
        return RunError(f"{slot.name} failed: {type(error.cause).__name__}: {error.cause}")
    return RunError(f"{slot.name} failed: {error}")
