"""What is to be measured: one point each, and the single operators among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetrl.cost.work import Chip, work_of
from hetrl.spec.devices import DTYPE_BYTES
from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.operators import OperandPool, operation
from hetrl_profiler.shapes import Shape, as_amounts, candidates, most_informative
from hetrl_profiler.timing import Operation

POOL_SEED = 20
_UNIT = Chip(flops_per_second=1.0, memory_bytes_per_second=1.0, num_multiprocessors=1, l2_bytes=1.0)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One thing to measure.

    Parameters
    ----------
    kind
        Kind of the measurement.
    amounts
        Amounts of work of one call.
    prepare
        Makes the operands and returns the call.
    least_seconds
        Faster is impossible; a faster measurement is dropped.
    labels
        Further labels.
    results
        Called after sampling: amounts that only the call itself can know.
    """

    kind: str
    amounts: Mapping[str, float]
    prepare: Callable[[], Operation]
    least_seconds: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    results: Callable[[], Mapping[str, float]] = field(default=dict)

    @property
    def name(self) -> str:
        """Identity of the point: a profile that is taken up again skips what it finds under this name."""
        return f"{self.kind}:" + ",".join(f"{key}={value:g}" for key, value in self.amounts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much is measured.

    Parameters
    ----------
    num_shapes
        Operator -> number of shapes.
    point_seconds
        Busy seconds per operator shape.
    max_flops, max_bytes
        Work of the largest single call.
    phase_seconds
        Busy seconds for all phases that torch runs, and as many for all that the engine runs.
    stages
        What is measured: of ``operators``, ``optimizer``, ``copies`` and ``links``, and with a model of ``train`` and
        ``engine``.
    """

    num_shapes: Mapping[str, int]
    point_seconds: float
    max_flops: float
    max_bytes: float
    phase_seconds: float
    stages: tuple[str, ...]


QUICK = Budget(
    num_shapes={"gemm": 22, "attention_prefill": 16, "attention_decode": 16, "memory": 6},
    point_seconds=0.03,
    max_flops=6e8,
    max_bytes=48e6,
    phase_seconds=4.5,
    stages=("operators", "train", "engine"),
)
"""About 3 s of a free core for the 60 operator shapes, and 9 s for a model's phases; loading comes on top."""
FULL = Budget(
    num_shapes={"gemm": 600, "attention_prefill": 150, "attention_decode": 200, "memory": 40, "memory_norm": 30},
    point_seconds=0.3,
    max_flops=2e10,
    max_bytes=4e8,
    phase_seconds=120.0,
    stages=("operators", "optimizer", "train", "engine", "copies", "links"),
)


def scaled(budget: Budget, device: ProfiledDevice) -> Budget:
    """Budget for a device; the limits of work above are for a CPU core."""
    if device.kind == "cpu":
        return budget
    return replace(budget, max_flops=1000 * budget.max_flops, max_bytes=100 * budget.max_bytes)


def operator_points(
    operator: str, device: ProfiledDevice, budget: Budget, pool: OperandPool, measured: Sequence[Shape]
) -> list[Point]:
    """Points of one operator: the shapes still to be measured when `measured` are done."""
    number = budget.num_shapes.get(operator, 0) - len(measured)
    if number <= 0:
        return []
    size = DTYPE_BYTES[device.dtype]
    found = candidates(operator, POOL_SEED, max_flops=budget.max_flops, max_bytes=budget.max_bytes, dtype_bytes=size)
    return [operator_point(operator, shape, device, pool) for shape in most_informative(found, measured, number)]


def operator_point(operator: str, shape: Shape, device: ProfiledDevice, pool: OperandPool) -> Point:
    """Point of one operator shape."""
    import numpy as np

    work = work_of(operator, np.array(shape, dtype=np.float64)[:, None], DTYPE_BYTES[device.dtype], _UNIT)
    # Bytes may come from a cache, whose speed the limit of the device allows for; causal attention may skip tiles.
    least = max(0.5 * work.flops.item() / device.max_flops_per_second, work.bytes.item() / device.max_bytes_per_second)
    return Point(
        kind=operator,
        amounts=as_amounts(operator, shape),
        prepare=lambda: operation(operator, shape, pool),
        least_seconds=least if operator != "gemm" else max(least, work.flops.item() / device.max_flops_per_second),
    )
