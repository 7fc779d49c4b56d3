"""Changes that make a described setup fit, and how many devices it would need."""

from __future__ import annotations

from dataclasses import replace

from hetrl.workload.setups import DOES_NOT_FIT, OFFLOADABLE, Setup, setup_memory

MOST_DEVICES = 4096


def remedies(setup: Setup) -> list[str]:
    """Return changes that make the setup fit, the smallest first; empty if it fits or nothing helps."""
    if setup_memory(setup).verdict != DOES_NOT_FIT:
        return []
    found = [text for text, changed in _changes(setup) if setup_memory(changed).verdict != DOES_NOT_FIT]
    count = devices_needed(setup)
    if count is not None:
        found.append(f"{count} devices of this type instead of {setup.train.num_devices if setup.train else count}")
    return found


def _changes(setup: Setup) -> list[tuple[str, Setup]]:
    changes: list[tuple[str, Setup]] = []
    train, engine = setup.train, setup.engine
    if engine is not None and train is not None and setup.colocated:
        for utilization in (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2):
            if utilization < engine.utilization:
                changed = replace(setup, engine=replace(engine, utilization=utilization))
                if setup_memory(changed).verdict != DOES_NOT_FIT:
                    changes.append((f"engine utilization {utilization:g}", changed))
                    break
    if train is None:
        return changes
    if train.sharding != "fsdp" and train.num_devices > train.tensor * train.pipeline:
        changes.append(("full sharding (FSDP, ZeRO-3)", replace(setup, train=replace(train, sharding="fsdp"))))
    if train.micro_batch_size > 1:
        changes.append(("micro-batch 1", replace(setup, train=replace(train, micro_batch_size=1))))
    if not train.recompute:
        changes.append(("activation recomputation", replace(setup, train=replace(train, recompute=True))))
    if not train.host_optimizer:
        offload = frozenset(OFFLOADABLE)
        changes.append(
            (
                "offload of optimizer states to the host",
                replace(setup, train=replace(train, offload=train.offload | {"optimizer"})),
            )
        )
        changes.append(
            (
                "offload of weights, gradients and optimizer states, optimizer on the host",
                replace(setup, train=replace(train, offload=offload, host_optimizer=True)),
            )
        )
    if train.precision.lora_rank == 0:
        changes.append(
            ("LoRA (rank 32)", replace(setup, train=replace(train, precision=replace(train.precision, lora_rank=32))))
        )
    return changes


def devices_needed(setup: Setup) -> int | None:
    """Return the smallest multiple of the devices at which the sharded setup fits, None if none up to 4,096 does."""
    if setup.train is None:
        return None
    base = setup.train.num_devices
    factor = 1
    while base * factor <= MOST_DEVICES:
        sharding = setup.train.sharding if setup.train.sharding != "none" else "fsdp"
        train = replace(setup.train, num_devices=base * factor, sharding=sharding)
        if setup_memory(replace(setup, train=train)).verdict != DOES_NOT_FIT:
            return base * factor
        factor *= 2
    return None
