"""A step's timings as measurements, beside what the plan had predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hetrl.measure import Measurement, MeasurementStore
from hetrl.runtime.placement import Slot
from hetrl.runtime.step import StepRecord

NOT_BUSY = ("wait_to_start", "wait_for_replicas", "send_weights", "receive_weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan says about a step, as far as it says anything.

    Parameters
    ----------
    step_seconds
        Time of a step; None if unknown.
    replica_seconds
        Task -> busy seconds of every replica.
    weight_sync_seconds
        Sending the new weights to all engines; None if unknown.
    peak_bytes
        Device id -> peak memory.
    shares
        The shares it holds for: steps with others are recorded without a prediction.
    max_response_tokens
        The response limit it holds for.
    """

    step_seconds: float | None = None
    replica_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    weight_sync_seconds: float | None = None
    peak_bytes: Mapping[int, float] = field(default_factory=dict)
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    max_response_tokens: int = 0


def record_step(store: MeasurementStore, record: StepRecord, prediction: Prediction | None) -> None:
    """Append a step's measurements.

    One of every phase of every worker; one of kind ``task`` per replica, its busy time without weight updates and
    without waiting for others; one of kind ``device`` per
    device, the peak memory of its workers together; one of kind ``phase`` per phase as the driver saw it; one of
    kind ``step``.
    """
    holds = (
        prediction is not None
        and dict(prediction.shares) == dict(record.shares)
        and prediction.max_response_tokens == record.max_response_tokens
    )
    predicted = prediction if prediction is not None and holds else Prediction()
    step = {"step": str(record.step)}
    busy: dict[Slot, float] = {}
    peaks: dict[Slot, float] = {}
    found: list[Measurement] = []

    def write(*arguments: Any, **keywords: Any) -> None:
        found.append(store.build(*arguments, **keywords))

    for slot, timing in record.timings:
        write(
            timing.phase,
            slot.device_type,
            amounts=timing.amounts,
            measured={"seconds": timing.seconds, "peak_bytes": timing.peak_bytes},
            labels={**step, **_labels(slot)},
        )
        busy.setdefault(slot, 0.0)
        busy[slot] += timing.seconds if timing.phase not in NOT_BUSY else 0.0
        peaks[slot] = max(peaks.get(slot, 0.0), timing.peak_bytes)
    for slot, seconds in busy.items():
        known = predicted.replica_seconds.get(slot.task)
        write(
            "task",
            slot.device_type,
            amounts={"num_prompts": record.shares[slot.task][slot.replica]},
            measured={"seconds": seconds},
            predicted={} if known is None else {"seconds": known[slot.replica]},
            labels={**step, **_labels(slot)},
        )
    for device, device_type in {slot.device: slot.device_type for slot in peaks}.items():
        write(
            "device",
            device_type,
            amounts={},
            measured={"peak_bytes": sum(peak for slot, peak in peaks.items() if slot.device == device)},
            predicted={"peak_bytes": predicted.peak_bytes[device]} if device in predicted.peak_bytes else {},
            labels={**step, "device": str(device)},
        )
    for phase, seconds in record.phase_seconds.items():
        known_seconds = predicted.weight_sync_seconds if phase == "weight_sync" else None
        write(
            "phase",
            "",
            amounts={},
            measured={"seconds": seconds},
            predicted={} if known_seconds is None else {"seconds": known_seconds},
            labels={**step, "phase": phase},
        )
    write(
        "step",
        "",
        amounts={
            "num_prompt_tokens": record.num_prompt_tokens,
            "num_response_tokens": record.num_response_tokens,
        },
        measured={"seconds": record.seconds},
        predicted={} if predicted.step_seconds is None else {"seconds": predicted.step_seconds},
        labels={**step, **{f"shares.{task}": _text(shares) for task, shares in record.shares.items()}},
    )
    store.append(found)


def _labels(slot: Slot) -> dict[str, str]:
    return {"task": slot.task, "replica": str(slot.replica), "device": str(slot.device)}


def _text(shares: tuple[int, ...]) -> str:
    return ",".join(str(share) for share in shares)
