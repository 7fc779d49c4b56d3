"""An operator library that a person can compute with: FLOPs over peak, bytes over bandwidth, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetrl.cost.model import CostModel, PhaseCalibration
from hetrl.cost.operators import Prediction
from hetrl.cost.unit import UnitCosts
from hetrl.spec.devices import DeviceType
from hetrl.spec.job import Job


@dataclass(frozen=True)
class TextbookModel:
    """One operator of one device."""

    device: DeviceType
    operator: str
    dtype: str
    provenance: str = "datasheet"

    def predict(self, **dims: object) -> Prediction:
        values = {name: np.asarray(value, dtype=np.float64) for name, value in dims.items()}
        flops = self.device.flops_per_second[self.dtype]
        if self.operator == "gemm":
            seconds = 2 * values["m"] * values["n"] * values["k"] / flops
        elif self.operator == "attention_prefill":
            pairs = values["seq_len"] * (values["seq_len"] + 1) / 2
            seconds = 4 * values["batch"] * values["heads"] * values["head_dim"] * pairs / flops
        elif self.operator == "attention_decode":
            seconds = 4 * values["batch"] * values["heads"] * values["head_dim"] * values["kv_len"] / flops
        else:
            seconds = values["bytes"] / self.device.memory_bytes_per_second
        return Prediction(
            seconds=seconds,
            p10_seconds=seconds,
            p90_seconds=seconds,
            provenance="datasheet",
            extrapolated=np.zeros(np.shape(seconds), dtype=bool),
        )


class TextbookLibrary:
    """Stands in for an `OperatorLibrary`."""

    def for_device(self, device: DeviceType, operator: str, dtype: str) -> TextbookModel:
        return TextbookModel(device, operator, dtype)


def textbook_costs(job: Job, calibrations: dict[tuple[str, str], PhaseCalibration] | None = None) -> UnitCosts:
    """Unit costs without engine overhead, unless calibrations say otherwise."""
    plain = {(device.name, "generate"): PhaseCalibration() for device in job.topology.device_types}
    model = CostModel(library=TextbookLibrary(), calibrations={**plain, **(calibrations or {})})  # type: ignore[arg-type]
    return UnitCosts(model, job.precision)
