"""Links of a profile: latency and bandwidth as a job file states them, terms of collectives, copies, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.links import LinkCurve
from hetrl.cost.node_collectives import NodeCurve, terms_of
from hetrl.measure import Measurement
from hetrl.spec.topology import CollectiveTerms, Link
from hetrl_profiler.copies import KINDS
from hetrl_profiler.described import NETWORK, is_profile
from hetrl_profiler.fit.links import fit_curve, fit_latency_and_bandwidth

MIN_SIZES = 3
"""A curve needs as many sizes as it has terms."""

Key = tuple[str, ...]


def link_curves(measurements: Sequence[Measurement]) -> list[LinkCurve]:
    """One curve per device type that measured the link inside its host, operation and number of ranks."""
    rows = [each for each in measurements if each.kind in ("send", *OPERATIONS) and _is_inside(each)]
    groups = _groups((each.device_type, each.kind, f"{each.amounts['num_ranks']:.0f}") for each in rows)
    curves = []
    for (device, operation, num_ranks), numbers in groups.items():
        own = [rows[number] for number in numbers]
        if not _has_enough_sizes(own):
            continue
        curves.append(
            fit_curve(
                np.array([each.amounts["num_bytes"] for each in own]),
                np.array([each.seconds for each in own]),
                link=own[0].labels["link"],
                implementation=own[0].labels["implementation"],
                op=operation,
                world_size=int(num_ranks),
                num_nodes=1,
                gpu=device,
                source=f"hetrl profile, {own[0].machine.cpu}, {own[-1].date[:10]}",
            )
        )
    return curves


def node_curves(measurements: Sequence[Measurement]) -> tuple[NodeCurve, ...]:
    """Return collectives among the devices of the profiled hosts, for plans."""
    bandwidths = {
        each.device_type: each.amounts["link_bytes_per_second"]
        for each in measurements
        if each.kind in OPERATIONS and _is_inside(each) and "link_bytes_per_second" in each.amounts
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
    rows = [each for each in measurements if each.kind == "send" and _is_inside(each)]
    return {device: link for (device,), link in _links(rows, [(each.device_type,) for each in rows]).items()}


def measured_network(measurements: Sequence[Measurement]) -> dict[tuple[str, str], Link]:
    """Latency and bandwidth of messages between two nodes, per pair of their device types, in both orders."""
    rows = [each for each in measurements if each.kind == "send" and is_profile(each) and not _is_inside(each)]
    found = _links(rows, [(each.device_type, each.labels["peer"]) for each in rows])
    return {pair: link for (a, b), link in found.items() for pair in ((a, b), (b, a))}


def measured_host_links(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Bytes per second between host and device memory, the slower direction, per device type that measured it."""
    rows = [each for each in measurements if each.kind in KINDS and is_profile(each)]
    found: dict[str, float] = {}
    for (device, _), link in _links(rows, [(each.device_type, each.kind) for each in rows]).items():
        found[device] = min(link.bytes_per_second, found.get(device, np.inf))
    return found


def describe_links(measurements: Sequence[Measurement]) -> list[str]:
    """Everything above as text."""
    lines = [f"{device}, send inside its host: {_text(link)}" for device, link in measured_links(measurements).items()]
    lines += [
        f"{curve.device}, {curve.operation} over {curve.num_ranks} ranks: {terms_text(curve.terms)}"
        for curve in node_curves(measurements)
    ]
    lines += [
        f"{device}, copies from and to its host: {bandwidth / 1e9:.2f} GB/s"
        for device, bandwidth in measured_host_links(measurements).items()
    ]
    network = measured_network(measurements)
    return lines + [f"{a} to {b}, send between nodes: {_text(link)}" for (a, b), link in network.items() if a <= b]


def terms_text(terms: CollectiveTerms) -> str:
    """Seconds of a collective over its bytes: ``2446 us + 12 ns x sqrt(bytes) + bytes / (1.09 GB/s)``."""
    parts = [f"{1e6 * terms.offset_seconds:.0f} us"]
    if terms.seconds_per_sqrt_byte > 0:
        parts.append(f"{1e9 * terms.seconds_per_sqrt_byte:.3g} ns x sqrt(bytes)")
    if terms.seconds_per_byte > 0:
        parts.append(f"bytes / ({1e-9 / terms.seconds_per_byte:.3g} GB/s)")
    return " + ".join(parts)


def _text(link: Link) -> str:
    return f"{1e6 * link.latency_seconds:.0f} us, {link.bytes_per_second / 1e9:.2f} GB/s"


def _is_inside(measurement: Measurement) -> bool:
    """Whether a profile measured it inside one host."""
    return is_profile(measurement) and measurement.labels.get("link") != NETWORK


def _groups(keys: Iterable[Key]) -> Mapping[Key, list[int]]:
    """Key -> numbers of its rows, keys in order."""
    found: dict[Key, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    return dict(sorted(found.items()))


def _links(rows: Sequence[Measurement], keys: Sequence[Key]) -> Mapping[Key, Link]:
    """Latency and bandwidth of the rows of every key that has enough sizes."""
    links = {}
    for key, numbers in _groups(keys).items():
        own = [rows[number] for number in numbers]
        if _has_enough_sizes(own):
            latency, bandwidth = fit_latency_and_bandwidth(
                np.array([each.amounts["num_bytes"] for each in own]), np.array([each.seconds for each in own])
            )
            links[key] = Link(latency_seconds=latency, bytes_per_second=bandwidth, kind="measured")
    return links


def _has_enough_sizes(rows: Sequence[Measurement]) -> bool:
    return len({each.amounts["num_bytes"] for each in rows}) >= MIN_SIZES
