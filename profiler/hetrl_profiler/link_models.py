"""Links of a profile: latency and bandwidth, as a job file states them, and curves of collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetrl.cost.links import LinkCurve
from hetrl.measure import Measurement
from hetrl.spec.topology import Link
from hetrl_profiler.described import is_profile
from hetrl_profiler.fit.links import fit_curve, fit_latency_and_bandwidth

OPERATIONS = ("send", "all_reduce")


def link_curves(measurements: Sequence[Measurement]) -> list[LinkCurve]:
    """One curve per device type that measured the link, and operation."""
    curves = []
    for device in sorted({each.device_type for each in measurements}):
        for operation in OPERATIONS:
            own = _of(measurements, device, operation)
            if len(own) < 3:
                continue
            curves.append(
                fit_curve(
                    np.array([each.amounts["num_bytes"] for each in own]),
                    np.array([each.seconds for each in own]),
                    link=own[0].labels["link"],
                    implementation=own[0].labels["implementation"],
                    op=operation,
                    world_size=2,
                    num_nodes=1,
                    gpu=device,
                    source=f"hetrl profile, {own[0].machine.cpu}, {own[-1].date[:10]}",
                )
            )
    return curves


def measured_links(measurements: Sequence[Measurement]) -> dict[str, Link]:
    """Latency and bandwidth of messages between two processes of the host, per device type that measured them."""
    links = {}
    for device in sorted({each.device_type for each in measurements}):
        own = _of(measurements, device, "send")
        if len(own) < 3:
            continue
        latency, bandwidth = fit_latency_and_bandwidth(
            np.array([each.amounts["num_bytes"] for each in own]), np.array([each.seconds for each in own])
        )
        links[device] = Link(latency_seconds=float(latency), bytes_per_second=float(bandwidth), kind="measured")
    return links


def describe_links(measurements: Sequence[Measurement]) -> list[str]:
    """Latency and bandwidth of messages between two processes, as text."""
    return [
        f"loopback, measured by {device}: {1e6 * link.latency_seconds:.0f} us, {link.bytes_per_second / 1e9:.2f} GB/s"
        for device, link in measured_links(measurements).items()
    ]


def _of(measurements: Sequence[Measurement], device: str, operation: str) -> list[Measurement]:
    return [each for each in measurements if each.kind == operation and each.device_type == device and is_profile(each)]
