"""Measured collectives inside one node: which curves apply to a node, and what follows for other numbers of ranks.

A curve was measured on one host. It counts for nodes with the same device type whose devices are joined by a link of
the same bandwidth; another link is another host, and keeps its latency and bandwidth. Numbers of ranks and operations
that were not measured there follow from the nearest one that was: the offset by ring steps, the rest by the bytes on
the wire.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.links import LinkCurve, ring_steps, wire_factor
from hetrl.cost.published import device_of, link_figures
from hetrl.spec.topology import CollectiveTerms, MeasuredCollectives, Node

SAME_BANDWIDTH = 0.1
"""Two links are of one kind if their bandwidths differ by less than this share."""
_SWITCHED = re.compile(r"nvlink\d+_(?!dgx)\w+_intra")
"""Links whose published curves hold for every host: all devices on NVSwitch. PCIe hosts differ tenfold."""
PUBLISHED_IMPLEMENTATION = "nccl-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCurve:
    """One collective on the devices of one host.

    Parameters
    ----------
    device
        Device type name.
    operation
        One of `hetrl.cost.collectives.OPERATIONS`.
    num_ranks
        Ranks, all in the host.
    link_bytes_per_second
        Datasheet bandwidth of the host's link, one direction; 0 if unknown, then the curve counts for every node with
        such devices.
    terms
        Its seconds.
    provenance
        ``measured`` on a machine of the user's, ``fitted`` to published measurements (or the name of their package).
    """

    device: str
    operation: str
    num_ranks: int
    link_bytes_per_second: float
    terms: CollectiveTerms
    provenance: str = "measured"

    def holds_for(self, node: Node) -> bool:
        """Whether the node is like the host on which this was measured."""
        if node.device_type.name != self.device:
            return False
        stated = self.link_bytes_per_second
        return stated == 0 or abs(node.intra_link.bytes_per_second / stated - 1.0) < SAME_BANDWIDTH


def published_node_curves(curves: Sequence[LinkCurve], provenance: str = "fitted") -> tuple[NodeCurve, ...]:
    """Curves of published tables that hold for whole classes of hosts."""
    return tuple(
        NodeCurve(
            device=device_of(curve.gpu).name,
            operation=curve.op,
            num_ranks=curve.world_size,
            link_bytes_per_second=link_figures(curve.link)[1],
            terms=terms_of(curve),
            provenance=provenance,
        )
        for curve in curves
        if _SWITCHED.fullmatch(curve.link) and curve.implementation == PUBLISHED_IMPLEMENTATION
        if curve.num_nodes == 1 and curve.op in OPERATIONS
    )


def terms_of(curve: LinkCurve) -> CollectiveTerms:
    """Three terms of a link curve, without its residual."""
    return CollectiveTerms(
        offset_seconds=curve.offset_seconds,
        seconds_per_sqrt_byte=curve.seconds_per_sqrt_byte,
        seconds_per_byte=curve.seconds_per_byte,
    )


def measured_collectives(node: Node, curves: Sequence[NodeCurve]) -> MeasuredCollectives | None:
    """Return collectives of all operations and numbers of ranks inside a node; None if nothing like it was measured.

    Curves of one provenance go together; the first one's counts.
    """
    own = [curve for curve in curves if curve.holds_for(node)]
    if not own:
        return None
    best = own[0].provenance
    own = [curve for curve in own if curve.provenance == best]
    return MeasuredCollectives(
        terms={
            (operation, num_ranks): _derived(_nearest(own, operation, num_ranks), operation, num_ranks)
            for operation, num_ranks in product(OPERATIONS, range(2, node.num_devices + 1))
        },
        provenance=best,
    )


def _nearest(curves: Sequence[NodeCurve], operation: str, num_ranks: int) -> NodeCurve:
    """Choose the same operation first, then the nearest number of ranks in the logarithm, the smaller of two."""
    return min(
        curves,
        key=lambda curve: (curve.operation != operation, abs(math.log(curve.num_ranks / num_ranks)), curve.num_ranks),
    )


def _derived(curve: NodeCurve, operation: str, num_ranks: int) -> CollectiveTerms:
    steps = ring_steps(operation, num_ranks) / ring_steps(curve.operation, curve.num_ranks)
    wire = wire_factor(operation, num_ranks) / wire_factor(curve.operation, curve.num_ranks)
    return CollectiveTerms(
        offset_seconds=steps * curve.terms.offset_seconds,
        seconds_per_sqrt_byte=math.sqrt(wire) * curve.terms.seconds_per_sqrt_byte,
        seconds_per_byte=wire * curve.terms.seconds_per_byte,
    )
