"""Lower bound of generation's seconds on given numbers of devices by type.

An engine of P stages of T devices each handles at most so many sequences within D seconds; engines share nothing, so
what the groups of all types handle together must reach all sequences. The bound is the least such D on a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.model import PHASES
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES, CostTables
from hetrl.search.bounds.passes import (
    ALL_REDUCES_PER_LAYER,
    PIPELINES,
    Floats,
    Ints,
    scalar,
    tensor_groups,
)
from hetrl.spec.job import Job

ENGINE_LIMIT = 256
"""Sequences that an engine of the declared space runs at once at most."""
NUM_DEADLINES = 300
NUM_HALVES = 2
"""Engines that run half of what they may are looked at, too."""
MOST_MIXED = 3
GRID_STEP = 1.06
"""Shares between neighbours of the grid count as the smaller one."""


def generation_bound(job: Job, tables: CostTables, index: int, points: Ints) -> Floats:
    """Seconds that no layout undercuts on device counts ``points`` ``[K, Y]``; infinite where nothing fits."""
    model, types = int(tables.task_model[index]), points.shape[1]
    prompts = _share_grid(job.batch.num_prompts)
    points = np.where(tables.type_supported[None, :] > 0, points, 0)
    present = points > 0
    sets = [tuple(np.flatnonzero(row).tolist()) for row in np.unique(present, axis=0)]
    rates: dict[tuple[int, tuple[int, ...]], list[Engines]] = {}  # (degree, types of one engine) -> by length
    degrees = np.flatnonzero(tables.tensor_allowed[model]).tolist()
    wanted = {subset for kinds in sets for subset in _subsets(kinds)}
    for degree_index in degrees:
        for kinds in sorted(wanted):
            rates[degree_index, kinds] = _engines(job, tables, index, degree_index, kinds, prompts)
    best = np.full(len(points), np.inf)
    finite = np.concatenate([e.seconds[np.isfinite(e.seconds)] for row in rates.values() for e in row] + [np.empty(0)])
    if len(finite) == 0:
        return best
    deadlines = np.geomspace(finite.min(), finite.max() * 1.001, NUM_DEADLINES)
    for degree_index in degrees:
        groups = tensor_groups(tables, points, TENSOR_DEGREES[degree_index]).astype(np.float64)
        for kinds in sets:
            if not kinds:
                continue
            here = (present == np.isin(np.arange(types), kinds)).all(axis=1)
            engines = [each for subset in _subsets(kinds) for each in rates[degree_index, subset]]
            handled = _handled(engines, groups[here], prompts, deadlines)
            reached = handled >= job.batch.num_prompts * (1 - 1e-12)  # [K, D]
            first = np.where(reached.any(axis=1), reached.argmax(axis=1), len(deadlines))
            # what is reached at a deadline may be reached anywhere after the one before
            seconds = np.concatenate([deadlines[:1], deadlines[:-1], [np.inf]])[first]
            best[here] = np.minimum(best[here], seconds)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Engines of one composition: ``groups`` ``[Y]`` tensor groups of every type, and seconds for every share."""

    groups: Floats
    seconds: Floats


def _subsets(kinds: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All non-empty subsets of at most three types; more types in one engine count as their fastest three."""
    return [each for size in range(1, min(len(kinds), MOST_MIXED) + 1) for each in combinations(kinds, size)]


def _handled(engines: list[Engines], groups: Floats, prompts: Ints, deadlines: Floats) -> Floats:
    """Prompts that all groups handle together at most by every deadline, ``[K, D]``.

    With a price for every type's group such that no engine handles more than its groups are worth, the worth of all
    groups is a bound. Two such prices: what a type handles by itself, raised until mixed engines are paid for; and for
    every type the most that any engine with it handles per group.
    """
    types = groups.shape[1]
    alone = np.zeros((types, len(deadlines)))
    equal = np.zeros_like(alone)
    most = [_prompts_by(each.seconds, prompts, deadlines) for each in engines]
    for engine, number in zip(engines, most, strict=True):
        per_group = number / engine.groups.sum()
        kinds = np.flatnonzero(engine.groups)
        equal[kinds] = np.maximum(equal[kinds], per_group)
        if len(kinds) == 1:
            alone[kinds] = np.maximum(alone[kinds], per_group)
    factor = np.ones(len(deadlines))
    for engine, number in zip(engines, most, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.fmax(factor, np.where(number > 0, number / (engine.groups @ alone), 1.0))
    with np.errstate(invalid="ignore"):
        raised = np.nan_to_num(groups @ alone * factor, nan=np.inf)
    return np.minimum(raised, groups @ equal)


def _share_grid(num_prompts: int) -> Ints:
    """Prompts of one engine: small shares one by one, larger ones in steps."""
    grid = [1]
    while grid[-1] < num_prompts:
        grid.append(min(num_prompts, max(grid[-1] + 1, int(grid[-1] * GRID_STEP))))
    return np.array(grid, dtype=np.int64)


def _prompts_by(seconds: Floats, prompts: Ints, deadlines: Floats) -> Floats:
    """Prompts that an engine handles by every deadline."""
    monotone = np.minimum.accumulate(seconds[::-1])[::-1]  # no more prompts in less time
    above = np.searchsorted(monotone, deadlines, side="right")  # first share that takes longer
    most = np.where(above < len(prompts), prompts[np.minimum(above, len(prompts) - 1)] - 1, prompts[-1])
    return most.astype(np.float64)


def _engines(
    job: Job, tables: CostTables, index: int, degree_index: int, kinds: tuple[int, ...], prompts: Ints
) -> list[Engines]:
    """Engines that have groups of all these types, with all memory to themselves.

    A pipeline's iteration takes P times its slowest stage, so with work spread over the stages by their speeds, P over
    the sum of the stages' speeds, each type being as fast as on the part that suits it best.
    """
    model, degree, batch = int(tables.task_model[index]), TENSOR_DEGREES[degree_index], job.batch
    if not all(tables.type_supported[kind] for kind in kinds):
        return []
    layers = int(tables.model_kinds[model])
    counts = tables.kinds_before[model, :layers, tables.model_layers[model]].astype(np.float64)
    held = float(tables.kind_kv[model, degree_index, :layers] @ counts)
    free = tables.node_limit - (tables.type_allowance[:, 0] + tables.type_allowance[:, 1])[tables.node_type]
    roomiest = np.array([float(free[tables.node_type == kind].max()) for kind in kinds])
    sequences = (prompts * int(tables.task_sequences[index])).astype(np.float64)
    prefill = _prefill_parts(job, tables, model, degree_index, kinds, prompts)
    result = []
    for stages in PIPELINES:
        if stages < len(kinds) or stages > int(tables.model_layers[model]):
            continue
        mixes = _compositions(stages, len(kinds))
        rooms = mixes @ roomiest - float(tables.transfer_weights[index]) / degree
        possible = (rooms >= 0) & (rooms >= held * batch.max_sequence_tokens)
        if not possible.any():
            continue
        fits = np.floor(rooms.max() / held / float(tables.task_in_flight[index])) if held > 0 else np.inf
        most = np.minimum(np.minimum(ENGINE_LIMIT, sequences), max(1.0, float(fits)))
        running = np.maximum(1.0, np.floor(most[None, :] / 2.0 ** np.arange(NUM_HALVES)[:, None]))
        decode = _decode_seconds(job, tables, model, degree_index, kinds, float(stages), sequences, running, mixes)
        for mix, seconds, possibly in zip(mixes, decode, possible, strict=True):
            if possibly:
                groups = np.zeros(len(tables.type_flops))
                groups[list(kinds)] = mix
                once = _mixed(prefill, mix) / stages
                result.append(Engines(groups=groups, seconds=np.asarray(seconds + prompts * once)))
    return result


def _compositions(total: int, parts: int) -> Floats:
    """All ways to write ``total`` as an ordered sum of positive parts, ``[ways, parts]``."""
    cuts = combinations(range(1, total), parts - 1)
    return np.array([np.diff((0, *cut, total)) for cut in cuts], dtype=np.float64)


def _mixed(parts: Sequence[Floats], mix: Floats) -> Floats:
    """Seconds of the whole model on stages of mixed types: the number of stages over the sum of their speeds.

    ``parts`` are ``[kinds, ...]`` each.
    """
    whole = np.sum(parts, axis=0)
    if len(mix) == 1:
        return np.asarray(whole[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        slower = np.stack([np.where(part[:1] > 0, part / part[:1], np.inf) for part in parts]).min(axis=0)
    speeds = np.tensordot(mix, 1.0 / slower, axes=1)
    return np.asarray(whole[0] * mix.sum() / speeds)


def _prefill_parts(
    job: Job, tables: CostTables, model: int, degree_index: int, kinds: tuple[int, ...], prompts: Ints
) -> list[Floats]:
    """Seconds per prompt of layers and head in an engine's chunks, ``[kinds, shares]`` each."""
    chunk = np.minimum(tables.head_seconds.shape[3] - len(MICRO_BATCHES), prompts)
    shape = len(MICRO_BATCHES) - 1 + chunk
    hidden = chunk * job.batch.prompt_tokens * float(tables.model_hidden_bytes[model])
    parts: list[list[Floats]] = [[] for _ in range(int(tables.model_kinds[model]) + 1)]
    for kind in kinds:
        scale = float(tables.calibration[kind, PHASES.index("prefill"), 0])
        reduces = _reduces(tables, degree_index, kind, hidden)
        for layer in range(len(parts) - 1):
            count = float(tables.kinds_before[model, layer, tables.model_layers[model]])
            each = scale * tables.layer_seconds[model, kind, degree_index, shape, layer] + reduces
            parts[layer].append(count * each / chunk)
        parts[-1].append(scale * tables.head_seconds[model, kind, degree_index, shape] / chunk)
    return [np.stack(part) for part in parts]


def _reduces(tables: CostTables, degree_index: int, kind: int, num_bytes: Floats) -> Floats:
    """All-reduces of one layer in the best node of a type."""
    if degree_index == 0:
        return np.zeros_like(num_bytes)
    terms = tables.node_collective[tables.node_type == kind, OPERATIONS.index("all_reduce")]
    terms = np.unique(terms[:, TENSOR_DEGREES[degree_index]], axis=0)
    seconds = [t[0] + t[1] * np.sqrt(num_bytes) + t[2] * num_bytes for t in terms]
    return ALL_REDUCES_PER_LAYER * np.asarray(np.min(seconds, axis=0))


def _decode_seconds(
    job: Job,
    tables: CostTables,
    model: int,
    degree_index: int,
    kinds: tuple[int, ...],
    stages: float,
    sequences: Floats,
    running: Floats,
    mixes: Floats,
) -> Floats:
    """Return decoding of ``sequences`` ``[S]`` with ``running`` ``[H, S]`` at once, the fastest, ``[mixes, S]``.

    Sends between stages are left out.
    """
    batch = job.batch
    alive = tables.tail_alive
    any_alive = 1.0 - (1.0 - alive) ** running[..., None]
    tail = np.divide(running[..., None] * alive, any_alive, out=np.ones_like(any_alive), where=any_alive > 0)
    active = np.concatenate([running[..., None], np.maximum(tail, 1.0)], axis=-1)
    prompt, mean = scalar(tables, "prompt_tokens"), scalar(tables, "mean_response")
    context = np.concatenate([[prompt + mean / 2], prompt + tables.tail_times])
    steady = (sequences - running) * mean / running
    iterations = np.concatenate([steady[..., None], any_alive * batch.max_response_tokens / len(alive)], axis=-1)
    split = np.maximum(active / stages, 1.0)
    grid, (low, high) = tables.concurrency_grid, tables.decode_contexts
    sizes = float(tables.model_hidden_bytes[model]) * split
    parts: list[list[Floats]] = [[] for _ in range(int(tables.model_kinds[model]) + 1)]
    for kind in kinds:
        scale = float(tables.calibration[kind, PHASES.index("generate"), 0])
        reduces = _reduces(tables, degree_index, kind, sizes)
        for layer in range(len(parts) - 1):
            count = float(tables.kinds_before[model, layer, tables.model_layers[model]])
            seen = np.minimum(context, tables.kind_window[model, layer])
            short, long = (
                np.interp(split, grid, row) for row in tables.decode_attention[model, kind, degree_index, layer]
            )
            slope = np.maximum(long - short, 0.0) / (high - low)
            each = np.interp(split, grid, tables.decode_projections[model, kind, degree_index, layer])
            each = each + np.maximum(short + slope * (seen - low), 0.0) + reduces
            parts[layer].append(scale * count * each)
        parts[-1].append(scale * np.interp(split, grid, tables.decode_head[model, kind, degree_index]))
    stacked = [np.stack(part) for part in parts]
    per_iteration, per_sequence = tables.calibration[list(kinds), PHASES.index("generate"), 1:].min(axis=0)
    rest = per_iteration * iterations.sum(axis=-1) + per_sequence * sequences * batch.mean_response_tokens
    return np.stack([((iterations * _mixed(stacked, mix)).sum(axis=-1) + rest).min(axis=0) for mix in mixes])
