"""Lower bound of generation's seconds on given numbers of devices by type.

An engine of P stages of T devices each handles at most so many sequences within D seconds; engines share nothing, so
what the groups of all types handle together must reach all sequences. The bound is the least such D on a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.model import PHASES
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES, CostTables
from hetrl.search.bounds.passes import (
    ALL_REDUCES_PER_LAYER,
    PIPELINES,
    Bools,
    Floats,
    Ints,
    most_tensor_groups,
    scalar,
    types_for,
)
from hetrl.spec.job import Job

ENGINE_LIMIT = 256
"""Sequences that an engine of the declared space runs at once at most."""
NUM_COARSE = 50
NUM_CLOSE = 300
WIDTH_OF_CLOSE = 4.0
"""Deadlines: few over the whole range, many up to four times what the whole fleet takes."""
NUM_HALVES = 2
"""Engines that run half of what they may are looked at, too."""
MOST_MIXED = 3
GRID_STEP = 1.06
"""Shares between neighbours of the grid count as the smaller one."""

DecodeParts = dict[tuple[object, ...], list[Floats]]
"""Seconds of an iteration's parts by tensor degree, sequences at once, and device type."""


def generation_bound(job: Job, tables: CostTables, index: int) -> Callable[[Ints], float]:
    """Return the function of device counts ``[Y]`` to the seconds that no layout undercuts on them."""
    return GenerationBound(job, tables, index).seconds


class GenerationBound:
    """Engines of all compositions, and what a tensor group of every type is worth in them by every deadline."""

    def __init__(self, job: Job, tables: CostTables, index: int) -> None:
        self.num_prompts = job.batch.num_prompts
        self.prompts = _share_grid(job.batch.num_prompts)
        self.degrees = np.flatnonzero(tables.tensor_allowed[int(tables.task_model[index])]).tolist()
        self.supported = types_for(tables, index)
        types = np.flatnonzero(self.supported).tolist()
        fleet = most_tensor_groups(tables, 1)
        self.most_groups = np.stack([most_tensor_groups(tables, TENSOR_DEGREES[each]) for each in self.degrees])
        self.divisors = np.array([TENSOR_DEGREES[d] for d in self.degrees], dtype=np.int64)[:, None]
        known: DecodeParts = {}
        self.engines = [
            Engines.joined(
                [_engines(job, tables, index, degree, kinds, self.prompts, known) for kinds in _subsets(tuple(types))]
            )
            for degree in self.degrees
        ]
        finite = np.concatenate([each.seconds[np.isfinite(each.seconds)] for each in self.engines])
        self._look_at(np.geomspace(finite.min(), finite.max() * 1.001, NUM_COARSE) if len(finite) else finite)
        least = self.seconds(fleet)
        if np.isfinite(least):  # the whole fleet's; close above it deadlines are close to each other
            most = max(finite.max(), least * WIDTH_OF_CLOSE) * 1.001
            close = np.geomspace(least, least * WIDTH_OF_CLOSE, NUM_CLOSE)
            self._look_at(np.append(close, np.geomspace(least * WIDTH_OF_CLOSE, most, NUM_COARSE)[1:]))

    def _look_at(self, deadlines: Floats) -> None:
        self.deadlines = deadlines
        self.handled = [each.prompts_by(self.prompts, deadlines) for each in self.engines]
        self.worths: dict[bytes, Floats] = {}

    def seconds(self, counts: Ints) -> float:
        """Seconds that no layout on ``counts`` devices by type undercuts; infinite where nothing fits."""
        present = (counts > 0) & self.supported
        if len(self.deadlines) == 0 or not present.any():
            return float("inf")
        key = present.tobytes()
        if key not in self.worths:
            self.worths[key] = self._worths(present)
        groups = np.where(present, np.minimum(counts // self.divisors, self.most_groups), 0).astype(np.float64)
        handled = np.matmul(groups[:, None, None, :], self.worths[key])[:, :, 0].min(axis=1)  # [T, D]
        reached = (handled >= self.num_prompts * (1 - 1e-12)).any(axis=0)
        if not reached.any():
            return float("inf")
        # what is reached at a deadline may be reached anywhere after the one before
        return float(self.deadlines[max(0, int(reached.argmax()) - 1)])

    def _worths(self, present: Bools) -> Floats:
        """Prompts that a group of every type is worth by every deadline, ``[T, 2, Y, D]``."""
        result = np.zeros((len(self.degrees), 2, len(present), len(self.deadlines)))
        for row, engines, handled in zip(result, self.engines, self.handled, strict=True):
            here = ~(engines.groups[:, ~present] > 0).any(axis=1)
            row[...] = _worths(engines.groups[here], handled[here])
        return result


def _worths(groups: Floats, handled: Floats) -> Floats:
    """Two prices for every type's group such that no engine handles more than its groups are worth, ``[2, Y, D]``.

    What a type handles by itself, raised until mixed engines are paid for; and for every type the most that any engine
    with it handles per group. ``groups`` are ``[engines, Y]`` and ``handled`` ``[engines, D]``.
    """
    result = np.zeros((2, groups.shape[1], handled.shape[1]))
    size = groups.sum(axis=1, keepdims=True)
    per_group = handled / size
    mixed = (groups > 0).sum(axis=1) > 1
    for kind in range(groups.shape[1]):
        result[1, kind] = per_group[groups[:, kind] > 0].max(axis=0, initial=0.0)
        result[0, kind] = per_group[(groups[:, kind] > 0) & ~mixed].max(axis=0, initial=0.0)
    if mixed.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(handled[mixed] > 0, handled[mixed] / (groups[mixed] @ result[0]), 1.0)
            raised = result[0] * np.maximum(factor.max(axis=0), 1.0)
        result[0] = np.where(np.isnan(raised) | np.isinf(raised), result[1], raised)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Engines: ``groups`` ``[E, Y]`` tensor groups of every type, and ``seconds`` ``[E, S]`` for every share."""

    groups: Floats
    seconds: Floats

    @classmethod
    def joined(cls, parts: Sequence[Engines]) -> Engines:
        """All engines of several sets."""
        return cls(
            groups=np.concatenate([each.groups for each in parts]),
            seconds=np.concatenate([each.seconds for each in parts]),
        )

    def prompts_by(self, prompts: Ints, deadlines: Floats) -> Floats:
        """Prompts that every engine handles by every deadline, ``[E, D]``."""
        monotone = np.minimum.accumulate(self.seconds[:, ::-1], axis=1)[:, ::-1]  # no more prompts in less time
        most = np.append(prompts.astype(np.float64) - 1.0, float(prompts[-1]))
        return np.array([most[np.searchsorted(row, deadlines, side="right")] for row in monotone]).reshape(
            len(monotone), len(deadlines)
        )


def _subsets(kinds: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All non-empty subsets of at most three types; more types in one engine count as their fastest three."""
    return [each for size in range(1, min(len(kinds), MOST_MIXED) + 1) for each in combinations(kinds, size)]


def _share_grid(num_prompts: int) -> Ints:
    """Prompts of one engine: small shares one by one, larger ones in steps."""
    grid = [1]
    while grid[-1] < num_prompts:
        grid.append(min(num_prompts, max(grid[-1] + 1, int(grid[-1] * GRID_STEP))))
    return np.array(grid, dtype=np.int64)


def _engines(
    job: Job,
    tables: CostTables,
    index: int,
    degree_index: int,
    kinds: tuple[int, ...],
    prompts: Ints,
    known: DecodeParts,
) -> Engines:
    """Engines that have groups of all these types, with all memory to themselves.

    A pipeline's iteration takes P times its slowest stage, so with work spread over the stages by their speeds, P over
    the sum of the stages' speeds, each type being as fast as on the part that suits it best.
    """
    model, degree, batch = int(tables.task_model[index]), TENSOR_DEGREES[degree_index], job.batch
    layers = int(tables.model_kinds[model])
    counts = tables.kinds_before[model, :layers, tables.model_layers[model]].astype(np.float64)
    held = float(tables.kind_kv[model, degree_index, :layers] @ counts)
    free = tables.node_limit - (tables.type_allowance[:, 0] + tables.type_allowance[:, 1])[tables.node_type]
    roomiest = np.array([float(free[tables.node_type == kind].max()) for kind in kinds])
    sequences = (prompts * int(tables.task_sequences[index])).astype(np.float64)
    prefill = _prefill_parts(job, tables, model, degree_index, kinds, prompts)
    groups, found = [np.empty((0, len(tables.type_flops)))], [np.empty((0, len(prompts)))]
    for stages in PIPELINES:
        if stages < len(kinds) or stages > int(tables.model_layers[model]):
            continue
        mixes = _compositions(stages, len(kinds))
        rooms = mixes @ roomiest - float(tables.transfer_weights[index]) / degree
        possible = (rooms >= 0) & (rooms >= held * batch.max_sequence_tokens)
        if not possible.any():
            continue
        mixes = mixes[possible]
        fits = np.floor(rooms.max() / held / float(tables.task_in_flight[index])) if held > 0 else np.inf
        most = np.minimum(np.minimum(ENGINE_LIMIT, sequences), max(1.0, float(fits)))
        running = np.maximum(1.0, np.floor(most[None, :] / 2.0 ** np.arange(NUM_HALVES)[:, None]))
        decode = _decode_seconds(
            job, tables, model, degree_index, kinds, float(stages), sequences, running, mixes, known
        )
        here = np.zeros((len(mixes), len(tables.type_flops)))
        here[:, list(kinds)] = mixes
        groups.append(here)
        found.append(decode + prompts * (_mixed(prefill, mixes) / stages))
    return Engines(groups=np.concatenate(groups), seconds=np.concatenate(found))


@cache
def _compositions(total: int, parts: int) -> Floats:
    """All ways to write ``total`` as an ordered sum of positive parts, ``[ways, parts]``."""
    cuts = [(0, *cut, total) for cut in combinations(range(1, total), parts - 1)]
    return np.diff(np.array(cuts, dtype=np.float64), axis=1)


def _mixed(parts: Sequence[Floats], mixes: Floats) -> Floats:
    """Seconds of the whole model on stages of mixed types: the number of stages over the sum of their speeds.

    ``parts`` are ``[kinds, ...]`` each, ``mixes`` ``[mixes, kinds]``.
    """
    whole = np.sum(parts, axis=0)
    if len(whole) == 1:
        return np.asarray(whole)
    with np.errstate(divide="ignore", invalid="ignore"):
        slower = np.stack([np.where(part[:1] > 0, part / part[:1], np.inf) for part in parts]).min(axis=0)
    speeds = np.tensordot(mixes, 1.0 / slower, axes=1)
    return np.asarray(whole[0] * mixes[0].sum() / speeds)


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
    known: DecodeParts,
) -> Floats:
    """Return decoding of ``sequences`` ``[S]`` with ``running`` ``[H, S]`` at once, the fastest, ``[mixes, S]``.

    Sends between stages are left out. ``known`` keeps what several compositions share.
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
    key = (degree_index, split.tobytes())
    for kind in kinds:
        if (*key, kind) not in known:
            known[*key, kind] = _decode_parts(tables, model, degree_index, kind, split, context)
    stacked = [np.stack(part) for part in zip(*(known[*key, kind] for kind in kinds), strict=True)]
    per_iteration, per_sequence = tables.calibration[list(kinds), PHASES.index("generate"), 1:].min(axis=0)
    rest = per_iteration * iterations.sum(axis=-1) + per_sequence * sequences * batch.mean_response_tokens
    return np.asarray(((iterations * _mixed(stacked, mixes)).sum(axis=-1) + rest).min(axis=1))


def _decode_parts(
    tables: CostTables, model: int, degree_index: int, kind: int, split: Floats, context: Floats
) -> list[Floats]:
    """Seconds of one iteration in all layers of every kind, and in the head, with ``split`` sequences at once."""
    grid, (low, high) = tables.concurrency_grid, tables.decode_contexts
    scale = float(tables.calibration[kind, PHASES.index("generate"), 0])
    reduces = _reduces(tables, degree_index, kind, float(tables.model_hidden_bytes[model]) * split)
    parts = []
    for layer in range(int(tables.model_kinds[model])):
        count = float(tables.kinds_before[model, layer, tables.model_layers[model]])
        seen = np.minimum(context, tables.kind_window[model, layer])
        short, long = (np.interp(split, grid, row) for row in tables.decode_attention[model, kind, degree_index, layer])
        slope = np.maximum(long - short, 0.0) / (high - low)
        each = np.interp(split, grid, tables.decode_projections[model, kind, degree_index, layer])
        parts.append(scale * count * (each + np.maximum(short + slope * (seen - low), 0.0) + reduces))
    return [*parts, scale * np.interp(split, grid, tables.decode_head[model, kind, degree_index])]
