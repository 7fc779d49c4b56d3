"""A plan on the terminal: groups and strategies, a text timeline, memory, and what was assumed."""

from __future__ import annotations

import io
import math
import shutil
import sys
from collections import Counter
from collections.abc import Mapping

from rich.console import Console, JustifyMethod
from rich.table import Table

from hetrl.cost.estimate import Estimate
from hetrl.plan.capabilities import unsupported
from hetrl.plan.document import PlanDocument
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job
from hetrl.tools.bound_text import bound_lines
from hetrl.tools.search_text import search_lines
from hetrl.tools.streams import shows
from hetrl.units import format_bytes, format_seconds

TIMELINE_COLUMNS = 48
"""Of a bar, at most; fewer on a narrow terminal, but never under `LEAST_TIMELINE_COLUMNS`."""
LEAST_TIMELINE_COLUMNS = 8
MOST_DECIMALS = 6
"""Of a time on the timeline, whose figures all have as many: what takes a thousandth of the step is seen."""
MOST_NODES = 8
"""Named in one line."""
WIDTH = 118
"""Where there is no terminal: a file or a pipe."""
LEAST_WIDTH = 60
WIDTH_OF_MEMORY_TERMS = 90
"""Narrower terminals are not shown the largest terms of a device's memory (`hetrl memory` has all of them)."""

GROUPS_COLUMNS: dict[str, tuple[int, JustifyMethod]] = {
    "group": (0, "right"),
    "devices": (0, "left"),
    "task": (0, "left"),
    "layout": (0, "left"),
    "micro-batch": (90, "right"),
    "keeps": (75, "left"),
    "seconds": (100, "right"),
}
"""Heading -> (width of the terminal from which on the column is shown, side); the timeline tells the seconds too."""


def plan_text(job: Job, result: SearchResult, document: PlanDocument) -> str:
    """Return everything that ``hetrl plan`` prints."""
    width = terminal_width()
    console = Console(width=width, record=True, file=_Sheet())
    estimate = result.estimate
    for line in document.warnings:  # first: below sixty lines nobody reads them
        console.print(f"warning: {line}", highlight=False, markup=False)
    console.print(_groups_table(job, result, width))
    console.print(_timeline(job, result, width))
    console.print(_memory_table(job, result, width))
    if result.curve:
        console.print(_curve_table(result))
    console.print(f"{figures_text(job, result.plan, estimate)}; {_provenance(document)}", highlight=False)
    console.print(f"critical path: {' > '.join(estimate.schedule.critical_path)}", highlight=False)
    for line in (*unused_lines(job, result.plan), *bound_lines(job, result), *search_lines(result)):
        console.print(line, highlight=False)
    for line in document.notes:
        console.print(f"offloaded: {line}", highlight=False, markup=False)
    if document.unsupported:
        console.print(_unsupported_line(job, result), highlight=False, markup=False)
    if document.assumed:
        console.print("assumed (set any of these in the job file):", highlight=False)
        for line in assumed_lines(document.assumed):
            console.print(f"  {line}", highlight=False, markup=False)
    return console.export_text(styles=False).rstrip()


def terminal_width() -> int:
    """Characters of a line: COLUMNS, else the terminal's, else `WIDTH`."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


class _Sheet(io.StringIO):
    """Text for stdout: rich draws tables with what its encoding has."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def step_word(job: Job) -> str:
    """Return what the time of one step is: with staleness, steps overlap and it is their period."""
    return "period" if job.staleness else "step"


def figures_text(job: Job, plan: Plan, estimate: Estimate) -> str:
    """Return the figures of a plan in one line: time, throughput, utilisation and price."""
    used = {job.topology.devices[device].node for task in plan.tasks for device in task.devices}
    unknown = [job.topology.nodes[node].id for node in sorted(used) if job.topology.nodes[node].usd_per_hour is None]
    price = (
        f"price unknown (no usd_per_hour of {unknown[0]}{f' and {len(unknown) - 1} more' if len(unknown) > 1 else ''})"
        if estimate.usd_per_step is None
        else f"${estimate.usd_per_step:.4g} per step"
    )
    return (
        f"{step_word(job)} {format_seconds(estimate.step_seconds)}, {estimate.tokens_per_second:,.0f} tokens/s, "
        f"MFU {estimate.model_flops_utilisation:.1%}, {price}"
    )


def unused_lines(job: Job, plan: Plan) -> list[str]:
    """Name the devices that no task uses, whether they belong to a group or not; nothing if all are used."""
    used = {device for task in plan.tasks for device in task.devices}
    rest = Counter(
        f"{device.type.name} of {job.topology.nodes[device.node].id}"
        for device in job.topology.devices
        if device.id not in used
    )
    if not rest:
        return []
    shown = ", ".join(f"{count} x {kind}" for kind, count in list(rest.items())[:MOST_NODES])
    more = f" and those of {len(rest) - MOST_NODES} more nodes" if len(rest) > MOST_NODES else ""
    return [f"unused devices: {shown}{more}"]


def assumed_lines(assumed: Mapping[str, str]) -> list[str]:
    """One line per section or node: ``batch: num_prompts = 256, prompt_tokens = 1024``."""
    sections: dict[str, list[str]] = {}
    for path, value in assumed.items():
        section, _, key = path.rpartition(".")
        sections.setdefault(section.removeprefix("cluster_topology."), []).append(f"{key} = {value}")
    return [f"{section}: {', '.join(entries)}" for section, entries in sections.items()]


def _groups_table(job: Job, result: SearchResult, width: int) -> Table:
    table = Table(title="groups and strategies", title_justify="left")
    shown = [each for each, (least, _) in enumerate(GROUPS_COLUMNS.values()) if width >= least]
    for heading, (least, justify) in GROUPS_COLUMNS.items():
        if width >= least:
            table.add_column(heading, justify=justify, no_wrap=heading == "task", overflow="fold")
    plan = result.plan
    for number, group in enumerate(plan.groups):
        devices = Counter(job.topology.devices[device].type.name for device in group.devices)
        described = "\n".join(f"{count} x {name}" for name, count in devices.items())
        for row, name in enumerate(group.tasks):
            task = plan.task(name)
            cells = (
                str(number) if row == 0 else "",
                described if row == 0 else "",
                name,
                layout_text(job, task),
                str(task.micro_batch_size),
                _keeps_text(job, plan, task),
                f"{result.estimate.tasks[name].seconds:.3g}",
            )
            table.add_row(*(cells[each] for each in shown))
        table.add_section()
    return table


def layout_text(job: Job, task: TaskPlan) -> str:
    """Replicas in words, equal ones together: ``4x [TP2: 20+20 layers on H100] 64 prompts``."""
    counted: Counter[str] = Counter()
    for replica in task.replicas:
        stages = "+".join(str(stage.num_layers) for stage in replica.stages)
        kinds = "/".join(dict.fromkeys(job.topology.devices[stage.devices[0]].type.name for stage in replica.stages))
        degrees = "/".join(dict.fromkeys(f"TP{stage.tensor_parallel}" for stage in replica.stages))
        depth = f" PP{len(replica.stages)} ({stages} layers)" if len(replica.stages) > 1 else ""
        counted[f"{degrees}{depth} on {kinds}, {replica.num_prompts} prompts"] += 1
    return "\n".join(f"{count} x {text}" for text, count in counted.items())


def _keeps_text(job: Job, plan: Plan, task: TaskPlan) -> str:
    kind = job.workflow.task(task.task).kind
    words = {
        "resident": "weights",
        "host": "weights on host",
        "dropped": "nothing (sleeps)",
        "shared": "shared weights",
    }
    text = words[task.residency.weights_when_idle]
    if kind == "train":
        states = {"device": "states", "host_when_idle": "states to host when idle", "host": "states on host"}
        text += ", " + states[task.residency.optimizer_states]
        if task.sharding != "none":
            text += f", {task.sharding}"
        if task.recompute:
            text += ", recompute"
    return text


def _timeline(job: Job, result: SearchResult, width: int) -> Table:
    schedule = result.estimate.schedule
    title = "timeline of one step, in seconds"
    if job.staleness:
        title += f"; steps overlap, one ends every {format_seconds(result.estimate.step_seconds)}"
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("activity")
    table.add_column("", no_wrap=True)
    table.add_column("start", justify="right", no_wrap=True)
    table.add_column("end", justify="right", no_wrap=True)
    total = max(schedule.seconds, 1e-12)
    beside = max(map(len, schedule.start)) + 32  # the name, two figures and what stands between them
    columns = max(LEAST_TIMELINE_COLUMNS, min(TIMELINE_COLUMNS, width - beside))
    decimals = max(0, min(MOST_DECIMALS, 3 - math.floor(math.log10(total))))
    critical, other = ("█", "▒") if shows("█▒") else ("#", "=")
    for name in sorted(schedule.start, key=lambda each: (schedule.start[each], each)):
        begin = round(schedule.start[name] / total * columns)
        length = max(1, round((schedule.end[name] - schedule.start[name]) / total * columns))
        bar = " " * min(begin, columns - 1) + (critical if name in schedule.critical_path else other) * length
        table.add_row(name, bar[:columns], f"{schedule.start[name]:.{decimals}f}", f"{schedule.end[name]:.{decimals}f}")
    return table


def _memory_table(job: Job, result: SearchResult, width: int) -> Table:
    """Show the fullest interval of the fullest device of every group and device type."""
    memory = result.estimate.memory
    table = Table(title="memory, fullest device of each kind", title_justify="left", show_edge=False)
    with_terms = width >= WIDTH_OF_MEMORY_TERMS
    for heading in ("group", "device", "interval", *(["largest terms"] if with_terms else [])):
        table.add_column(heading)
    table.add_column("used", justify="right")
    table.add_column("allowed", justify="right")
    for number, group in enumerate(result.plan.groups):
        fullest: dict[str, tuple[float, int, str]] = {}
        for device in group.devices:
            kind = job.topology.devices[device].type.name
            for interval, terms in memory.devices[device].items():
                share = sum(terms.values()) / memory.limits[device]
                if kind not in fullest or share > fullest[kind][0]:
                    fullest[kind] = (share, device, interval)
        for kind, (share, device, interval) in fullest.items():
            terms = memory.devices[device][interval]
            largest = sorted(terms, key=lambda term: -terms[term])[:3]
            described = ", ".join(f"{term} {format_bytes(terms[term])}" for term in largest)
            limit = memory.limits[device]
            table.add_row(
                str(number),
                f"{kind} (id {device})",
                interval,
                *([described] if with_terms else []),
                format_bytes(share * limit),
                format_bytes(limit),
            )
    return table


def _curve_table(result: SearchResult) -> Table:
    title = "time against money: the fastest plan under each limit of the hourly price"
    if not result.curve_complete:
        title += " (cut off by the time limit or Ctrl-C)"
    table = Table(title=title, title_justify="left", show_edge=False)
    for heading in ("at most, $ per hour", "$ per hour", "seconds per step", "$ per step"):
        table.add_column(heading, justify="right")
    for each in result.curve:
        table.add_row(
            f"{each.limit_usd_per_hour:.2f}",
            f"{each.usd_per_hour:.2f}",
            f"{each.step_seconds:.4g}",
            f"{each.usd_per_step:.4g}",
        )
    return table


def _unsupported_line(job: Job, result: SearchResult) -> str:
    features = (problem.message.removeprefix("NotSupported: ") for problem in unsupported(job, result.plan))
    return f"this version cannot launch it yet: {'; '.join(dict.fromkeys(features))}"


def _provenance(document: PlanDocument) -> str:
    counted = Counter(document.provenance.values())
    return "figures of the cost model: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))
