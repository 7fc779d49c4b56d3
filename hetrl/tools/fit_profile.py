"""The part of `hetrl fit` that reads measurements of `hetrl profile` and writes a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hetrl.cost.model import CostModel
from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.files import check_writable
from hetrl.measure import Measurement, load_measurements
from hetrl.tools.console import PlainConsole
from hetrl.tools.job_or_plan import read_job_or_plan

if TYPE_CHECKING:
    from hetrl_profiler.refit import Refit


def fit_measurements(paths: Sequence[Path], *, out: Path, config: Path | None = None, base: Path | None = None) -> int:
    """Fit operators and phase calibrations of every profiled device; write the model, say how good it is.

    Parameters
    ----------
    paths
        Files of measurements.
    out
        The cost model, for ``hetrl plan --models``.
    config
        Job file or plan that describes the device types and links.
    base
        Cost model whose other devices are kept; None takes the built-in one.
    """
    from hetrl_profiler.described import slowdown_lines
    from hetrl_profiler.link_models import describe_links
    from hetrl_profiler.model_fit import fit_profile

    check_writable(out)
    check_writable(out.with_suffix(".operators"))
    measurements = read_measurements(paths)
    job = read_job_or_plan(config)[0] if config is not None else None
    model = CostModel.load(base) if base is not None else CostModel.builtin()
    fitted, operators = fit_profile(measurements, model, job=job, source=str(out))
    fitted.model.save(out)
    console = PlainConsole()
    for each in operators:
        error = 100 * float(str(each.facts["cross_validated_mdape"]))
        console.print(
            f"{each.device} {each.operator} {each.dtype}: {each.facts['num_points']} shapes, "
            f"cross-validated MdAPE {error:.1f} %",
            highlight=False,
        )
    for line in (*slowdown_lines(measurements), *describe_links(measurements)):
        console.print(line, highlight=False, soft_wrap=True)
    print_changes(console, fitted, before="composed")
    console.print(f"written: {out}", highlight=False)
    return EXIT_OK


def print_changes(console: Console, fitted: Refit, *, before: str) -> None:
    """Print what was fitted: errors per device and kind, and the calibrations."""
    table = Table("device", "measured", "rows", f"measured / {before}", "error before", "after", "", box=None)
    for each in fitted.changes:
        known = each.ratio_before < 1e6  # a phase of which nothing was known has no ratio
        table.add_row(
            each.device,
            each.kind,
            str(each.num_measurements),
            f"{each.ratio_before:.2f} ({each.low:.2f} to {each.high:.2f})" if known else "-",
            f"{100 * each.error_before:.1f} %" if known else "-",
            f"{100 * each.error_after:.1f} %",
            "" if before == "composed" else "drift" if each.is_drift else "first" if each.is_first else "",
        )
    console.print(table)
    table = Table("device", "phase", "scale", "ms per iteration", "us per sequence", box=None)
    for (device, phase), (old, new) in fitted.calibrations.items():
        pairs = (
            (old.scale, new.scale, 1.0),
            (old.per_iteration_seconds, new.per_iteration_seconds, 1e3),
            (old.per_sequence_seconds, new.per_sequence_seconds, 1e6),
        )
        table.add_row(device, phase, *(f"{unit * a:.4g} -> {unit * b:.4g}" for a, b, unit in pairs))
    console.print(table)


def read_measurements(paths: Sequence[Path]) -> list[Measurement]:
    """Read files of measurements; SpecError names those that cannot be read, and every bad line."""
    problems: list[Problem] = []
    found: list[Measurement] = []
    for path in paths:
        try:
            found += load_measurements(path)
        except OSError as error:
            problems.append(Problem(path=str(path), message=f"cannot be read: {error.strerror}"))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return found
