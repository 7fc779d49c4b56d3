"""Profiling one device: operators, copies, links, and the phases of a model, each a stage that can be left out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetrl.cost.work import DIMENSIONS
from hetrl.errors import Problem, SpecError
from hetrl.measure import Measurement, MeasurementStore
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model
from hetrl_profiler.accelerators import HostLink, host_link
from hetrl_profiler.copies import copy_points
from hetrl_profiler.described import OPERATORS
from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.links import GPU_SIZES, SIZES, LinkSample, host_samples
from hetrl_profiler.operators import OperandPool
from hetrl_profiler.points import Budget, Point, operator_points, scaled
from hetrl_profiler.progress import Progress
from hetrl_profiler.recorder import Recorder

STAGES = ("operators", "optimizer", "train", "engine", "copies", "links")
POINTS_PER_PHASE = 10
MAX_CPU_RANKS = 8


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to profile.

    Parameters
    ----------
    device
        The device; this process is pinned to it already.
    out
        Measurements are appended here.
    budget
        How much.
    model_folder
        Model whose phases are measured; None measures operators and links only.
    responses_per_prompt
        Responses sampled for each prompt when generating.
    stages
        Which of `STAGES`; None takes those of the budget, and links where there is a model, whose runs need them.
    quiet
        No progress bar.
    """

    device: ProfiledDevice
    out: Path
    budget: Budget
    model_folder: Path | None = None
    responses_per_prompt: int = 8
    stages: Sequence[str] | None = None
    quiet: bool = False

    @property
    def chosen_stages(self) -> tuple[str, ...]:
        """Stages that are carried out."""
        if self.stages is not None:
            return tuple(self.stages)
        with_links = self.budget.stages if self.model_folder is None else (*self.budget.stages, "links")
        return tuple(stage for stage in STAGES if stage in with_links)


def profile(request: Request, *, when_ready: Callable[[], None] | None = None) -> Recorder:
    """Measure and store; return what was stored.

    Parameters
    ----------
    when_ready
        Called when everything is loaded and before anything is measured.

    Raises
    ------
    SpecError
        If the model's folder holds none, or the file of measurements is damaged.
    RunError
        If a link cannot be measured.
    """
    import torch

    torch.set_num_threads(1)
    device, stages = request.device, request.chosen_stages
    budget = scaled(request.budget, device)
    labels, model = model_labels(request.model_folder)
    with Progress(device.name, quiet=request.quiet) as progress:
        recorder = Recorder(request.out, device, progress, {})
        phases = engine = None
        if request.model_folder is not None and model is not None:
            if "train" in stages:
                from hetrl_profiler.torch_phases import TorchPhases

                progress.say("loading the model")
                phases = TorchPhases(request.model_folder, model, device, labels)
            if "engine" in stages:
                from hetrl_profiler.engine import EnginePhases

                progress.say("starting the engine")
                engine = EnginePhases(request.model_folder, model, device, request.responses_per_prompt, labels)
        if when_ready is not None:
            when_ready()
        try:
            if "operators" in stages:
                run_operators(recorder, budget)
            if "copies" in stages:
                recorder.run(copy_points(device, budget.max_bytes), point_seconds=budget.point_seconds)
            if "optimizer" in stages and phases is None:
                from hetrl_profiler.torch_phases import optimizer_points

                recorder.run(optimizer_points(device, budget.max_bytes), point_seconds=budget.point_seconds)
            for each in (phases, engine):
                if each is not None:
                    run_phases(recorder, each.points(), request.budget)
        finally:
            if engine is not None:
                engine.close()
        if "links" in stages and not recorder.measured("all_reduce"):
            progress.say("links")
            run_links(recorder)
    return recorder


def model_labels(folder: Path | None) -> tuple[dict[str, str], Model | None]:
    """Labels that make measurements of a model readable without its folder, and the model."""
    if folder is None:
        return {}, None
    if not (folder / "model.safetensors").is_file():
        raise SpecError(
            Problem(
                path="--model", message="no model there", found=str(folder), valid="a folder with model.safetensors"
            )
        )
    model = find_model(str(folder), path="--model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {"model": folder.name, "config": json.dumps(config, separators=(",", ":"))}, model


def run_operators(recorder: Recorder, budget: Budget) -> None:
    """Measure the operator shapes that are still missing."""
    import torch

    size = torch.empty((), dtype=recorder.device.torch_dtype).element_size()
    pool = OperandPool(recorder.device, int(budget.max_bytes) // size)
    with torch.inference_mode():
        for operator in OPERATORS:
            stored = [
                tuple(each.amounts[name] for name in DIMENSIONS[operator]) for each in recorder.measured(operator)
            ]
            points = operator_points(operator, recorder.device, budget, pool, stored)
            recorder.run(points, point_seconds=budget.point_seconds, single_kernels=True)


def run_phases(recorder: Recorder, points: Sequence[Point], budget: Budget) -> None:
    """Measure phases of a model, as many as the budget allows."""
    recorder.run(points, point_seconds=budget.phase_seconds / POINTS_PER_PHASE, total_seconds=budget.phase_seconds)


def places_of(device: ProfiledDevice) -> list[int]:
    """Cores of this machine, or its GPUs of the same kind as the profiled one."""
    if device.kind == "cpu":
        return list(range(min(os.cpu_count() or 1, MAX_CPU_RANKS)))
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [index for index, name in enumerate(names) if name == names[device.index]]


def run_links(recorder: Recorder) -> None:
    """Measure what goes between the devices of this host; nothing where there is only one."""
    device = recorder.device
    places = places_of(device)
    if len(places) < 2:
        if device.kind != "cpu":
            return
        places = [0, 0]  # two processes share the only core
    link = HostLink("loopback", 0.0) if device.kind == "cpu" else host_link(device.kind, device.index, device.facts)
    samples = host_samples(device.kind, places, sizes=SIZES if device.kind == "cpu" else GPU_SIZES)
    labels = {"implementation": "gloo" if device.kind == "cpu" else "nccl"}
    found = link_measurements(recorder.store, device.name, samples, link, labels)
    recorder.store.append(found)
    recorder.stored += found


def link_measurements(
    store: MeasurementStore, device: str, samples: Sequence[LinkSample], link: HostLink, labels: Mapping[str, str]
) -> list[Measurement]:
    """Measurements of one link, not yet stored."""
    stated = {"link_bytes_per_second": link.bytes_per_second} if link.bytes_per_second else {}
    return [
        store.build(
            each.operation,
            device,
            amounts={"num_bytes": each.num_bytes, "num_ranks": each.num_ranks, **stated},
            measured={"seconds": each.seconds, "spread": each.spread},
            labels={
                "link": link.name,
                "point": f"{link.name}:{each.operation}:{each.num_ranks}:{each.num_bytes}",
                **labels,
            },
        )
        for each in samples
    ]
