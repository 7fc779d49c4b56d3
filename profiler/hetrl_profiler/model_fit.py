"""A cost model from measurements: operators and phase calibrations of profiled devices, calibrations from runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hetrl.cost.model import CostModel
from hetrl.cost.node_collectives import NodeCurve
from hetrl.cost.operators import OperatorLibrary, OperatorModel
from hetrl.errors import Problem, SpecError
from hetrl.measure import Measurement
from hetrl.spec.device_names import catalogue_devices
from hetrl.spec.devices import DeviceType
from hetrl.spec.job import Job, Precision
from hetrl_profiler.composed import PHASE_OF_KIND
from hetrl_profiler.described import device_from_profile, evened, is_profile
from hetrl_profiler.link_models import measured_host_links, measured_links, measured_network, node_curves
from hetrl_profiler.observations import Surroundings, observe
from hetrl_profiler.operator_models import fit_operators
from hetrl_profiler.refit import Refit, refit


def fit_profile(
    measurements: Sequence[Measurement],
    model: CostModel,
    *,
    job: Job | None = None,
    source: str = "profile",
) -> tuple[Refit, list[OperatorModel]]:
    """Fit operators and phase calibrations of every profiled device.

    Parameters
    ----------
    measurements
        Of `hetrl profile`; others are passed over.
    model
        Model to start from; its other devices stay.
    job
        Describes device types and links. Without it a device's peaks are the highest rates measured, and nothing is
        said of reduces, whose time depends on the links.

    Raises
    ------
    SpecError
        If nothing was profiled, a model's phases were in several dtypes, or a figure is missing.
    """
    rows = evened([each for each in measurements if is_profile(each)])
    if not rows:
        raise SpecError(Problem(path="measurements", message="no measurements of hetrl profile"))
    dtypes = sorted({each.labels["dtype"] for each in rows if "dtype" in each.labels})
    phase_dtype = _phase_dtype(rows, dtypes, job)
    described = {each.name: each for each in job.topology.device_types} if job is not None else {}
    devices: dict[str, DeviceType] = {}
    models: list[OperatorModel] = []
    for name in sorted({each.device_type for each in rows}):
        device = described.get(name) or catalogue_devices().get(name) or device_from_profile(name, dtypes, rows)
        chip_source = device_from_profile(name, dtypes, rows) if device.vendor == "cpu" else device
        for dtype in dtypes:
            if chip_source.supports(dtype):
                models += fit_operators(chip_source, dtype, rows, model.library)
        devices[name] = device
    with_operators = replace(
        model,
        library=model.library.merged(OperatorLibrary(models)),
        links={**model.links, **measured_links(measurements)},
        network={**model.network, **measured_network(measurements)},
        host_links={**model.host_links, **measured_host_links(measurements)},
        collectives=_replaced(model.collectives, node_curves(measurements)),
    )
    if job is not None:
        job = with_operators.with_links(job)
    else:
        rows = [each for each in rows if each.kind != "all_reduce"]
    rows = [each for each in rows if each.labels.get("dtype", phase_dtype) == phase_dtype]
    observations = observe(rows, Surroundings(devices=devices, job=job))
    precision = job.precision if job is not None else Precision(dtype=phase_dtype, gradient_dtype=phase_dtype)
    return refit(observations, with_operators, precision, source=source), models


def _phase_dtype(rows: Sequence[Measurement], dtypes: Sequence[str], job: Job | None) -> str:
    """Dtype whose phases calibrate the model: the job's, else the only one in which phases were measured."""
    if job is not None:
        return job.precision.dtype
    found = sorted(
        {each.labels["dtype"] for each in rows if each.kind in PHASE_OF_KIND and "dtype" in each.labels}
    ) or list(dtypes[:1])
    if len(found) > 1:
        raise SpecError(
            Problem(
                path="measurements", message="phases were profiled in several dtypes", found=", ".join(found),
                valid="one of them, or the job that will run (--config)",
            )
        )  # fmt: skip
    return found[0]


def _replaced(old: Sequence[NodeCurve], new: Sequence[NodeCurve]) -> tuple[NodeCurve, ...]:
    """Add the new curves; those of the same devices, operation and ranks that a user measured before go."""
    again = {(each.device, each.operation, each.num_ranks) for each in new}
    kept = [
        each
        for each in old
        if each.provenance != "measured" or (each.device, each.operation, each.num_ranks) not in again
    ]
    return (*new, *kept)


def refit_run(
    job: Job,
    measurements: Sequence[Measurement],
    model: CostModel,
    *,
    micro_batch_sizes: Mapping[str, int] | None = None,
    source: str = "refit",
) -> Refit:
    """Fold measurements of runs of a job into a model's phase calibrations.

    Parameters
    ----------
    job
        The job that was run.
    measurements
        Of the runtime; measurements of a profile among them are passed over.
    model
        Model so far.
    micro_batch_sizes
        Task -> micro-batch size of the plan that was run, where the measurements do not carry it.

    Raises
    ------
    SpecError
        If no phase of the job's devices was measured, or measurements lack a figure.
    """
    job = model.with_links(job)
    devices = {each.name: each for each in job.topology.device_types}
    rows = [each for each in measurements if not is_profile(each)]
    surroundings = Surroundings(devices=devices, job=job, micro_batch_sizes=micro_batch_sizes or {})
    observations = observe(rows, surroundings)
    if not observations:
        raise SpecError(
            Problem(
                path="measurements", message="no phases of the job's device types among them",
                found=", ".join(sorted({each.device_type for each in measurements if each.device_type})) or "none",
                valid=", ".join(sorted(devices)),
            )
        )  # fmt: skip
    return refit(observations, model, job.precision, source=source)


def calibrate(
    job: Job,
    measurements: Sequence[Measurement],
    model: CostModel,
    *,
    micro_batch_sizes: Mapping[str, int] | None = None,
) -> CostModel:
    """Return the model after `refit_run`."""
    return refit_run(job, measurements, model, micro_batch_sizes=micro_batch_sizes).model
