"""Links of a profile: latency and bandwidth, as a job file states them, and curves of collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.links import LinkCurve
from hetrl.cost.node_collectives import NodeCurve, terms_of
from hetrl.measure import Measurement
from hetrl.spec.topology import Link
from hetrl_profiler.described import is_profile
from hetrl_profiler.fit.links import fit_curve, fit_latency_and_bandwidth

MIN_SIZES = 3
"""A curve needs as many sizes as it has terms."""


def link_curves(measurements: Sequence[Measurement]) -> list[LinkCurve]:
    """One curve per device type that measured its host's link, operation and number of ranks."""
    groups: dict[tuple[str, str, int], list[Measurement]] = {}
    for each in measurements:
        if each.kind in ("send", *OPERATIONS) and is_profile(each):
            groups.setdefault((each.device_type, each.kind, int(each.amounts["num_ranks"])), []).append(each)
    return [
        fit_curve(
            np.array([each.amounts["num_bytes"] for each in own]),
            np.array([each.seconds for each in own]),
            link=own[0].labels["link"],
            implementation=own[0].labels["implementation"],
            op=operation,
            world_size=num_ranks,
            num_nodes=1,
            gpu=device,
            source=f"hetrl profile, {own[0].machine.cpu}, {own[-1].date[:10]}",
        )
        for (device, operation, num_ranks), own in sorted(groups.items())
        if len({each.amounts["num_bytes"] for each in own}) >= MIN_SIZES
    ]


def node_curves(measurements: Sequence[Measurement]) -> tuple[NodeCurve, ...]:
    """Return collectives among the devices of the profiled hosts, for plans."""
    bandwidths = {
        each.device_type: each.amounts["link_bytes_per_second"]
        for each in measurements
        if each.kind in OPERATIONS and is_profile(each) and "link_bytes_per_second" in each.amounts
    }
    return tuple(
        NodeCurve(
            device=curve.gpu,
            operation=curve.op,
            num_ranks=curve.world_size,
            link_bytes_per_second=bandwidths.get(curve.gpu, 0.0),
            terms=terms_of(curve),
        )
        for curve in link_curves(measurements)
        if curve.op in OPERATIONS
    )


def measured_links(measurements: Sequence[Measurement]) -> dict[str, Link]:
    """Latency and bandwidth of messages between two processes of the host, per device type that measured them."""
    links = {}
    for device in sorted({each.device_type for each in measurements}):
        own = [each for each in measurements if each.kind == "send" and each.device_type == device and is_profile(each)]
        if len(own) < MIN_SIZES:
            continue
        latency, bandwidth = fit_latency_and_bandwidth(
            np.array([each.amounts["num_bytes"] for each in own]), np.array([each.seconds for each in own])
        )
        links[device] = Link(latency_seconds=float(latency), bytes_per_second=float(bandwidth), kind="measured")
    return links


def describe_links(measurements: Sequence[Measurement]) -> list[str]:
    """Latency and bandwidth of messages between two processes or devices of a host, and its collectives, as text."""
    sends = [
        f"{device}, send inside its host: {1e6 * link.latency_seconds:.0f} us, {link.bytes_per_second / 1e9:.2f} GB/s"
        for device, link in measured_links(measurements).items()
    ]
    collectives = [
        f"{curve.device}, {curve.operation} over {curve.num_ranks} ranks: {1e6 * curve.terms.offset_seconds:.0f} us "
        f"+ {1e9 * curve.terms.seconds_per_sqrt_byte:.3g} ns x sqrt(bytes) "
        f"+ {1e12 * curve.terms.seconds_per_byte:.3g} ps x bytes"
        for curve in node_curves(measurements)
    ]
    return sends + collectives
