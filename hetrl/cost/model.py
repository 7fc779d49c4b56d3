"""All coefficients of the cost model in one value, each with its provenance.

Operator times come from the operator library (fitted where measurements exist, else the datasheet roofline). A phase
calibration corrects the composed time of a whole phase on one device type for what operators do not show: launch
gaps, the engine's scheduler, Python. Calibrations are fitted from recorded runs by `hetrl fit` and `hetrl refit`.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.model_files import BUILTIN, read_index, read_links
from hetrl.cost.node_collectives import NodeCurve, measured_collectives, published_node_curves
from hetrl.cost.operators import OperatorLibrary, OperatorModel
from hetrl.errors import Problem, SpecError
from hetrl.files import write_text_atomically
from hetrl.spec.devices import DeviceType
from hetrl.spec.job import Job
from hetrl.spec.topology import CollectiveTerms, Link, MeasuredCollectives, network_level, share_machine

FORMAT = "hetrl-cost-model"
VERSION = 1
NEAR = ("rack", "zone")
"""Network levels for which a link that was measured between two nodes stands for others of their kind."""
PHASES = ("generate", "prefill", "score", "train", "optimizer", "sync", "reduce")
"""The order is that of the lowered tables (see the kernels' ``PHASE_...``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCalibration:
    """``seconds = scale * composed + per_iteration * iterations + per_sequence * sequences``.

    An iteration is one decode step (generate), one chunk of prompts (prefill), one micro-batch (score, train), one
    optimizer step (optimizer), one weight transfer to the engines (sync) or one gradient reduce (reduce).

    Parameters
    ----------
    provenance
        ``measured`` if fitted from runs on this device type, ``datasheet`` for the documented default.
    num_measurements
        Runs behind the fit.
    """

    scale: float = 1.0
    per_iteration_seconds: float = 0.0
    per_sequence_seconds: float = 0.0
    provenance: str = "datasheet"
    num_measurements: int = 0

    def seconds(self, composed: float, iterations: float, sequences: float) -> float:
        """Apply the calibration."""
        return self.scale * composed + self.per_iteration_seconds * iterations + self.per_sequence_seconds * sequences


DEFAULT_CALIBRATIONS: Mapping[str, PhaseCalibration] = {
    "generate": PhaseCalibration(per_iteration_seconds=1e-3),
    "prefill": PhaseCalibration(),
    "score": PhaseCalibration(),
    "train": PhaseCalibration(),
    "optimizer": PhaseCalibration(),
    "sync": PhaseCalibration(),
    "reduce": PhaseCalibration(),
}
"""Used where nothing was measured: the composed time as it is, and 1 ms of engine time per decode iteration."""


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Coefficients of everything that costs time.

    Parameters
    ----------
    library
        Operator models.
    calibrations
        (device type name, phase) -> calibration; missing ones are `DEFAULT_CALIBRATIONS`.
    links
        Device type -> link measured between two processes of one host, for nodes that share a ``host``.
    collectives
        Collectives measured inside one node, the most trusted first.
    host_links
        Device type -> bytes per second measured between its memory and its host's, one direction.
    network
        Two device types -> link measured between two nodes with them, for nodes of one zone.
    gradient_overlap
        Fraction of the data-parallel gradient reduce hidden behind the backward pass.
    weight_gather_overlap
        Fraction of FSDP's weight all-gathers hidden behind computation.
    """

    library: OperatorLibrary
    calibrations: Mapping[tuple[str, str], PhaseCalibration] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)
    collectives: tuple[NodeCurve, ...] = ()
    host_links: Mapping[str, float] = field(default_factory=dict)
    network: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    gradient_overlap: float = 0.0
    weight_gather_overlap: float = 0.7
    source: str = "built-in"

    @classmethod
    def builtin(cls) -> CostModel:
        """Built-in fitted operators and collectives, datasheet for other devices, default calibrations."""
        return cls(library=OperatorLibrary.builtin(), collectives=_published_collectives())

    @classmethod
    def _from_operators(cls, path: Path) -> CostModel:
        facts = read_index(path).get("facts")
        provenance = str(facts.get("provenance", "fitted")) if isinstance(facts, dict) else "fitted"
        builtin = cls.builtin()
        own = published_node_curves(read_links(path), provenance)
        return cls(
            library=builtin.library.merged(OperatorLibrary.load(path)),
            collectives=(*own, *builtin.collectives),
            source=str(path),
        )

    def operator(self, device: DeviceType, operator: str, dtype: str) -> OperatorModel:
        """Operator model of a device type; the datasheet roofline of its own figures if none is fitted."""
        return self.library.for_device(device, operator, dtype)

    def with_links(self, job: Job) -> Job:
        """Return the job with what was measured of its links.

        Nodes get their measured collectives and copies from and to the host; pairs of nodes of one host, and of one
        zone, get the measured link. Links between nodes that the job states itself stay.
        """
        known: dict[tuple[str, int, Link], MeasuredCollectives | None] = {}
        nodes = []
        for node in job.topology.nodes:
            key = (node.device_type.name, node.num_devices, node.intra_link)
            if key not in known:
                known[key] = measured_collectives(node, self.collectives)
            nodes.append(
                replace(
                    node,
                    intra_link=replace(node.intra_link, collectives=known[key]),
                    host_link_bytes_per_second=self.host_links.get(
                        node.device_type.name, node.host_link_bytes_per_second
                    ),
                )
            )
        if tuple(nodes) != job.topology.nodes:
            job = replace(job, topology=replace(job.topology, nodes=tuple(nodes)))
        return self._with_node_links(job)

    def _with_node_links(self, job: Job) -> Job:
        nodes = job.topology.nodes
        found: dict[tuple[int, int], Link] = {}
        for i, a in enumerate(nodes):
            for j, b in enumerate(nodes):
                between = self.network.get((a.device_type.name, b.device_type.name))
                if i != j and between is not None and not share_machine(a, b) and network_level(a, b) in NEAR:
                    found[i, j] = between
                ends = [self.links.get(node.device_type.name) for node in (a, b)]
                if i == j or not a.host or a.host != b.host or ends[0] is None or ends[1] is None:
                    continue
                found[i, j] = Link(
                    latency_seconds=max(ends[0].latency_seconds, ends[1].latency_seconds),
                    bytes_per_second=min(ends[0].bytes_per_second, ends[1].bytes_per_second),
                    kind="measured",
                )
        if not found:
            return job
        return replace(job, topology=replace(job.topology, node_links={**found, **job.topology.node_links}))

    def calibration(self, device: str, phase: str) -> PhaseCalibration:
        """Calibration of a phase on a device type."""
        return self.calibrations.get((device, phase), DEFAULT_CALIBRATIONS[phase])

    def save(self, path: Path) -> None:
        """Write the calibrations as JSON, and the operators beside it."""
        operators = path.with_suffix(".operators")
        self.library.save(operators)
        own = [curve for curve in self.collectives if curve.provenance != "fitted"]
        document = {"format": FORMAT, "version": VERSION, "operators": operators.name, **self._coefficients(own)}
        write_text_atomically(path, json.dumps(document, indent=1) + "\n")

    def digest(self) -> str:
        """Identify the coefficients, wherever they were read from."""
        content = [self.library.digest(), self._coefficients(self.collectives)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _coefficients(self, collectives: Sequence[NodeCurve]) -> dict[str, object]:
        """All but the operators, as JSON data."""
        return {
            "gradient_overlap": self.gradient_overlap,
            "weight_gather_overlap": self.weight_gather_overlap,
            "links": [
                {
                    "device": device,
                    "latency_seconds": link.latency_seconds,
                    "bytes_per_second": link.bytes_per_second,
                }
                for device, link in sorted(self.links.items())
            ],
            "network": [
                {
                    "devices": list(pair),
                    "latency_seconds": link.latency_seconds,
                    "bytes_per_second": link.bytes_per_second,
                }
                for pair, link in sorted(self.network.items())
            ],
            "host_links": dict(sorted(self.host_links.items())),
            "collectives": [_curve_entry(curve) for curve in collectives],
            "calibrations": [
                {"device": device, "phase": phase, **asdict(calibration)}
                for (device, phase), calibration in sorted(self.calibrations.items())
            ],
        }

    @classmethod
    def load(cls, path: Path) -> CostModel:
        """Read a file written by `save`, or a set of operator models and link curves, which goes before the built-in.

        Raises
        ------
        SpecError
            If the file is neither, or of another version.
        """
        if zipfile.is_zipfile(path):
            return cls._from_operators(path)
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SpecError(Problem(path=str(path), message=f"cannot read the cost model: {error}")) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
            raise SpecError(
                Problem(
                    path=str(path),
                    message="not a cost model of this version",
                    valid=f"format {FORMAT}, version {VERSION}",
                )
            )
        try:
            calibrations = {
                (str(row.pop("device")), str(row.pop("phase"))): PhaseCalibration(**row)
                for row in document["calibrations"]
            }
            return cls(
                library=OperatorLibrary.load(path.parent / Path(str(document["operators"])).name),
                calibrations=calibrations,
                links={str(row["device"]): _link_from(row) for row in document.get("links", [])},
                network=dict(_network_entry(row) for row in document.get("network", [])),
                host_links={
                    str(device): float(value)
                    for device, value in document.get("host_links", {}).items()
                    if 0 < float(value) < math.inf
                },
                collectives=(*(_curve_from(row) for row in document.get("collectives", [])), *_published_collectives()),
                gradient_overlap=float(document["gradient_overlap"]),
                weight_gather_overlap=float(document["weight_gather_overlap"]),
                source=str(path),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SpecError(Problem(path=str(path), message=f"damaged cost model: {error}")) from error


@cache
def _published_collectives() -> tuple[NodeCurve, ...]:
    return published_node_curves(read_links(BUILTIN))


def _network_entry(row: Mapping[str, Any]) -> tuple[tuple[str, str], Link]:
    a, b = row["devices"]
    return (str(a), str(b)), _link_from(row)


def _link_from(row: Mapping[str, Any]) -> Link:
    return Link(
        latency_seconds=float(row["latency_seconds"]),
        bytes_per_second=float(row["bytes_per_second"]),
        kind="measured",
    )


def _curve_entry(curve: NodeCurve) -> dict[str, object]:
    entry = asdict(curve)
    terms = entry.pop("terms")
    return {**entry, **terms}


def _curve_from(row: Mapping[str, Any]) -> NodeCurve:
    operation = str(row["operation"])
    if operation not in OPERATIONS or int(row["num_ranks"]) < 2:
        raise ValueError(f"a collective {operation} of {row['num_ranks']} ranks")
    terms = {name: float(row[name]) for name in ("offset_seconds", "seconds_per_sqrt_byte", "seconds_per_byte")}
    if not all(0 <= value < math.inf for value in terms.values()):
        raise ValueError(f"terms of {operation} are not finite amounts of at least 0")
    return NodeCurve(
        device=str(row["device"]),
        operation=operation,
        num_ranks=int(row["num_ranks"]),
        link_bytes_per_second=float(row["link_bytes_per_second"]),
        terms=CollectiveTerms(**terms),
        provenance=str(row.get("provenance", "measured")),
    )
