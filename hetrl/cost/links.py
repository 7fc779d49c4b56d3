"""Seconds of collectives and sends on measured links.

Every measured (link, implementation, operation, world size) has a curve ``offset + s sqrt(bytes) + bytes / W``, times a
residual interpolated over log bytes: libraries switch protocols with the size, which the three terms cannot follow.
Beyond the largest size the last residual stays. World sizes and operations that were not measured on a link are
derived from the ones that were, at equal bytes on the wire. A link is a host: two hosts with the same GPU may differ
tenfold, so a link without measurements gets latency and bandwidth from the datasheet and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetrl.cost.operators import Prediction
from hetrl.cost.work import Array
from hetrl.errors import Problem, SpecError

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "alltoall": "all_to_all",
        "p2p": "send",
        "send_recv": "send",
    }
)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
_DONORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all_reduce": ("reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"),
        "all_gather": ("reduce_scatter", "all_to_all", "all_reduce", "broadcast", "send"),
        "reduce_scatter": ("all_gather", "all_to_all", "all_reduce", "broadcast", "send"),
        "all_to_all": ("reduce_scatter", "all_gather", "all_reduce", "broadcast", "send"),
        "broadcast": ("all_gather", "send", "reduce_scatter", "all_to_all", "all_reduce"),
        "send": ("broadcast", "all_to_all", "all_gather", "reduce_scatter", "all_reduce"),
    }
)
MIN_CURVES = 3
"""So many curves of a host tell by themselves how well one of them follows from the others."""
DERIVED_SPREAD = 0.4
DATASHEET_SPREAD = 0.9
"""Half-widths in log(seconds) of the p10-p90 interval: for a curve derived from fewer, for no curve."""
NETWORK_SPREAD = (0.0, 2.13)
"""The interval of a network without measurements: collectives of published hosts take from 1 to 8 times as long as
their network cards promise, by topology and by how GPUs reach the cards (`hetrl_profiler.fit.links.datasheet_spread`
of the shipped curves between nodes)."""
DATASHEET_EFFICIENCY = 0.75
"""Share of the datasheet bandwidth that collectives reach (NVLink and PCIe hosts of the published data)."""
DATASHEET_OFFSET_SECONDS = 8e-6
"""Launch and first synchronisation of a collective; every ring step adds the link's latency."""


def operation(name: str) -> str:
    """Return the standard name of an operation; SpecError if it is not one."""
    standard = ALIASES.get(name, name)
    if standard not in OPERATIONS:
        raise SpecError(Problem(path="op", message="unknown collective", found=name, valid=", ".join(OPERATIONS)))
    return standard


def wire_factor(op: str, world_size: float) -> float:
    """Bytes on the wire per rank, per byte of the full buffer (as nccl-tests counts buffers)."""
    if op in ("broadcast", "send"):
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (world_size - 1.0) / world_size


def host_of(link: str) -> str:
    """Name of the host of a link: tables give one host's links per number of GPUs used, as in ``..._intra_4pn``."""
    return re.sub(r"_\d+pn$", "", link)


def ring_steps(op: str, world_size: int) -> int:
    """Latency-bound steps of the ring algorithm."""
    if op in ("broadcast", "send", "all_to_all"):
        return 1
    return (2 if op == "all_reduce" else 1) * (world_size - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCurve:
    """One operation on one link with one implementation and world size.

    Parameters
    ----------
    link, implementation, op, world_size, num_nodes, gpu
        What was measured where.
    offset_seconds, seconds_per_sqrt_byte, seconds_per_byte
        The three terms.
    knots_log_bytes, knots_residual
        Natural log of the size, and of measured over fitted seconds there.
    knots_low, knots_high
        10 % and 90 % quantiles of ``log(measured / predicted)`` on held-out sizes near every knot.
    beyond
        The two quantiles beyond the measured sizes: the errors of a fit without the largest ones.
    source
        Where the measurements come from.
    """

    link: str
    implementation: str
    op: str
    world_size: int
    num_nodes: int
    gpu: str
    offset_seconds: float
    seconds_per_sqrt_byte: float
    seconds_per_byte: float
    knots_log_bytes: tuple[float, ...]
    knots_residual: tuple[float, ...]
    knots_low: tuple[float, ...]
    knots_high: tuple[float, ...]
    beyond: tuple[float, float]
    source: str

    def seconds(self, num_bytes: Array) -> Array:
        """Seconds of full buffers of ``num_bytes``."""
        terms = (
            self.offset_seconds + self.seconds_per_sqrt_byte * np.sqrt(num_bytes) + self.seconds_per_byte * num_bytes
        )
        residual = np.interp(np.log(num_bytes), self.knots_log_bytes, self.knots_residual)
        return np.asarray(terms * np.exp(residual))

    def outside(self, num_bytes: Array) -> NDArray[np.bool_]:
        """Whether sizes lie outside the measured range."""
        logs = np.log(num_bytes)
        return np.asarray((logs < self.knots_log_bytes[0] - 1e-9) | (logs > self.knots_log_bytes[-1] + 1e-9))

    def bounds(self, num_bytes: Array) -> tuple[Array, Array]:
        """Log factors of the lower and the upper end of the interval."""
        logs, outside = np.log(num_bytes), self.outside(num_bytes)
        low = np.interp(logs, self.knots_log_bytes, self.knots_low)
        high = np.interp(logs, self.knots_log_bytes, self.knots_high)
        return np.where(outside, self.beyond[0], low), np.where(outside, self.beyond[1], high)

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> LinkCurve:
        """Inverse of `to_json`; TypeError or ValueError if it is damaged."""
        values = dict(entry)
        knots = ("knots_log_bytes", "knots_residual", "knots_low", "knots_high")
        for name in (*knots, "beyond"):
            values[name] = tuple(float(number) for number in values[name])
        curve = cls(**values)
        if not curve.knots_log_bytes or len({len(values[name]) for name in knots}) != 1 or len(curve.beyond) != 2:
            raise ValueError("a link curve needs as many residuals and bounds as sizes")
        return curve


class LinkModel:
    """Collectives on one link.

    Parameters
    ----------
    curves
        Its measured curves; may be empty.
    latency_seconds, bytes_per_second
        Datasheet figures for what no curve covers, one direction.
    """

    def __init__(
        self,
        curves: Sequence[LinkCurve] = (),
        *,
        latency_seconds: float | None = None,
        bytes_per_second: float | None = None,
    ) -> None:
        if not curves and (latency_seconds is None or bytes_per_second is None):
            raise SpecError(Problem(path="link", message="a link without measurements needs a latency and a bandwidth"))
        self.curves = tuple(curves)
        self._bounds: dict[tuple[int, ...], tuple[float, float]] = {}
        self.latency_seconds = latency_seconds
        self.bytes_per_second = bytes_per_second

    def collective_seconds(
        self,
        op: str,
        num_bytes: ArrayLike,
        world_size: int,
        *,
        num_nodes: int | None = None,
        implementation: str | None = None,
    ) -> Prediction:
        """Predict one operation for several sizes.

        Parameters
        ----------
        op
            One of `OPERATIONS`.
        num_bytes
            Full buffer in bytes, as in nccl-tests. Positive.
        world_size
            Ranks.
        num_nodes, implementation
            Narrow the choice of curves; what was not measured falls back to what was.
        """
        op = operation(op)
        sizes = np.atleast_1d(np.asarray(num_bytes, dtype=np.float64)).ravel()
        if not (np.isfinite(sizes) & (sizes > 0)).all() or world_size < 2:
            raise SpecError(Problem(path=op, message="sizes must be positive and the world at least 2 ranks"))
        candidates = [c for c in self.curves if num_nodes is None or c.num_nodes == num_nodes] or list(self.curves)
        for curve in candidates:
            if curve.op == op and curve.world_size == world_size and implementation in (None, curve.implementation):
                return _prediction(curve, sizes)
        if not candidates:
            return self._datasheet(op, sizes, world_size, between_nodes=num_nodes is not None and num_nodes > 1)
        log_seconds = _derived(op, sizes, world_size, _series(candidates, op, implementation))
        return _spread(np.exp(log_seconds), "fitted", *self._derived_bounds(candidates))

    def _derived_bounds(self, curves: Sequence[LinkCurve]) -> tuple[float, float]:
        """10 % and 90 % quantiles of the errors when each curve is derived from the others."""
        if len(curves) < MIN_CURVES:
            return -DERIVED_SPREAD, DERIVED_SPREAD
        key = tuple(map(id, curves))
        if key not in self._bounds:
            errors = []
            for left_out in curves:
                sizes = np.exp(left_out.knots_log_bytes)
                related = _series([c for c in curves if c is not left_out], left_out.op, left_out.implementation)
                derived = _derived(left_out.op, sizes, left_out.world_size, related)
                errors.append(np.log(left_out.seconds(sizes)) - derived)
            low, high = np.quantile(np.concatenate(errors), [0.1, 0.9], method="median_unbiased")
            self._bounds[key] = (min(float(low), 0.0), max(float(high), 0.0))
        return self._bounds[key]

    def _datasheet(self, op: str, sizes: Array, world_size: int, *, between_nodes: bool) -> Prediction:
        assert self.latency_seconds is not None and self.bytes_per_second is not None
        wire = wire_factor(op, world_size) * sizes / (DATASHEET_EFFICIENCY * self.bytes_per_second)
        seconds = DATASHEET_OFFSET_SECONDS + ring_steps(op, world_size) * self.latency_seconds + wire
        low, high = NETWORK_SPREAD if between_nodes else (-DATASHEET_SPREAD, DATASHEET_SPREAD)
        return _spread(seconds, "datasheet", low, high)


Series = Sequence[LinkCurve]
"""Curves of one implementation and operation, by world size."""


def _series(curves: Sequence[LinkCurve], op: str, implementation: str | None) -> list[Series]:
    """Group curves into series, the most related to the wanted operation and implementation first."""
    order = (op, *_DONORS[op])
    groups: dict[tuple[bool, int, str], list[LinkCurve]] = {}
    for curve in sorted(curves, key=lambda each: each.world_size):
        other = implementation is not None and curve.implementation != implementation
        groups.setdefault((other, order.index(curve.op), curve.implementation), []).append(curve)
    return [groups[key] for key in sorted(groups)]


def _derived(op: str, sizes: Array, world_size: int, related: Sequence[Series]) -> Array:
    """Log seconds of a curve that was not measured, from related ones at equal wire bytes.

    Between two measured world sizes of the closest series it interpolates over log2(world). Beyond them it takes the
    nearest and adds how another series, which was measured on both sides, changes from there to here.
    """
    wire = sizes * wire_factor(op, world_size)
    closest = related[0]
    if _covers(closest, world_size):
        return _at_world(closest, wire, world_size)
    nearest = min(closest, key=lambda curve: abs(np.log2(curve.world_size / world_size)))
    log_seconds = _at_world([nearest], wire, nearest.world_size)
    for series in related[1:]:
        if _covers(series, world_size) and _covers(series, nearest.world_size):
            trend = _at_world(series, wire, world_size) - _at_world(series, wire, nearest.world_size)
            return np.asarray(log_seconds + trend)
    return log_seconds


def _covers(series: Series, world_size: int) -> bool:
    return series[0].world_size <= world_size <= series[-1].world_size


def _at_world(series: Series, wire: Array, world_size: int) -> Array:
    """Log seconds at a world size inside the series, for bytes on the wire."""
    logs = np.stack([np.log(curve.seconds(wire / wire_factor(curve.op, curve.world_size))) for curve in series])
    worlds = np.log2([curve.world_size for curve in series])
    right = int(np.clip(np.searchsorted(worlds, np.log2(world_size)), 1, max(1, len(worlds) - 1)))
    if len(series) == 1:
        return np.asarray(logs[0])
    gap = worlds[right] - worlds[right - 1]  # 0 where one number of ranks was measured on several numbers of nodes
    share = (np.log2(world_size) - worlds[right - 1]) / gap if gap > 0 else 0.0
    return np.asarray(logs[right - 1] + share * (logs[right] - logs[right - 1]))


def _spread(seconds: Array, provenance: str, low: float, high: float) -> Prediction:
    return Prediction(
        seconds=seconds,
        p10_seconds=seconds * np.exp(low),
        p90_seconds=seconds * np.exp(high),
        provenance=provenance,
        extrapolated=np.ones(len(seconds), dtype=np.bool_),
    )


def _prediction(curve: LinkCurve, sizes: Array) -> Prediction:
    seconds, (low, high) = curve.seconds(sizes), curve.bounds(sizes)
    return Prediction(
        seconds=seconds,
        p10_seconds=seconds * np.exp(low),
        p90_seconds=seconds * np.exp(high),
        provenance="fitted",
        extrapolated=curve.outside(sizes),
    )
