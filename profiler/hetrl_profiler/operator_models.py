"""Operator models of profiled devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetrl.cost.chips import chip_of
from hetrl.cost.operators import ENGINES, UNFITTED, OperatorLibrary, OperatorModel
from hetrl.cost.work import DIMENSIONS
from hetrl.measure import Measurement
from hetrl.spec.device_names import catalogue_devices
from hetrl.spec.devices import DeviceType
from hetrl_profiler.described import OPERATORS, chip_from_profile, is_profile
from hetrl_profiler.fit.samples import Samples
from hetrl_profiler.fit.transfer import fit_any, fit_transferred

MIN_POINTS = 5


def fit_operators(
    device: DeviceType, dtype: str, measurements: Sequence[Measurement], library: OperatorLibrary
) -> list[OperatorModel]:
    """Fit every operator of a device that has at least `MIN_POINTS` shapes.

    A GPU borrows what known devices have in common; a CPU core shares nothing with them but the roofline.
    """
    is_cpu = device.vendor == "cpu"
    facts = next((each.machine.accelerator for each in measurements if each.device_type == device.name), {})
    known = not is_cpu and device.name in catalogue_devices()
    chip = chip_of(device, dtype) if known else chip_from_profile(device, dtype, facts)
    models = []
    for operator in OPERATORS:
        own = [
            each
            for each in measurements
            if each.kind == operator and each.device_type == device.name and each.labels.get("dtype") == dtype
            if is_profile(each)
        ]
        if len(own) < MIN_POINTS:
            continue
        samples = Samples(
            operator=operator,
            dtype=dtype,
            device=device.name,
            chip=chip,
            dims=np.array([[each.amounts[name] for each in own] for name in DIMENSIONS[operator]]),
            seconds=np.array([each.seconds for each in own]),
            engine=np.full(len(own), ENGINES.index("torch")),
            sources=(f"hetrl profile, {own[0].machine.cpu}, {own[-1].date[:10]}",),
        )
        models.append(fit_transferred(samples, UNFITTED[operator]) if is_cpu else fit_any(samples, library))
    return models
