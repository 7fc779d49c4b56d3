"""Profiling one device: operators, links, and the phases of a model, each a stage that can be left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetrl.cost.work import DIMENSIONS
from hetrl.errors import Problem, SpecError
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model
from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.links import measure_loopback
from hetrl_profiler.operators import OperandPool
from hetrl_profiler.points import Budget, Point, operator_points, scaled
from hetrl_profiler.progress import Progress
from hetrl_profiler.recorder import Recorder

STAGES = ("operators", "train", "engine", "links")
OPERATORS = ("gemm", "attention_prefill", "attention_decode", "memory")
LINK = "loopback"
POINTS_PER_PHASE = 10


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
        Which of `STAGES`.
    quiet
        No progress bar.
    """

    device: ProfiledDevice
    out: Path
    budget: Budget
    model_folder: Path | None = None
    responses_per_prompt: int = 8
    stages: Sequence[str] = STAGES
    quiet: bool = False


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
    device, stages = request.device, request.stages
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
                run_operators(recorder, scaled(request.budget, device))
            for each in (phases, engine):
                if each is not None:
                    run_phases(recorder, each.points(), request.budget)
        finally:
            if engine is not None:
                engine.close()
        if "links" in stages and device.kind == "cpu" and not recorder.measured("send"):
            progress.say("links")
            _run_links(recorder)
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
            recorder.run(points, point_seconds=budget.point_seconds)


def run_phases(recorder: Recorder, points: Sequence[Point], budget: Budget) -> None:
    """Measure phases of a model, as many as the budget allows."""
    recorder.run(points, point_seconds=budget.phase_seconds / POINTS_PER_PHASE, total_seconds=budget.phase_seconds)


def _run_links(recorder: Recorder) -> None:
    found = [
        recorder.store.build(
            each.operation,
            recorder.device.name,
            amounts={"num_bytes": each.num_bytes, "num_ranks": 2},
            measured={"seconds": each.seconds, "spread": each.spread},
            labels={"link": LINK, "implementation": "gloo", "point": f"{each.operation}:{each.num_bytes}"},
        )
        for each in measure_loopback()
    ]
    recorder.store.append(found)
    recorder.stored += found
