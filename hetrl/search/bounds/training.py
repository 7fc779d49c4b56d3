"""Lower bound of a training task's seconds on given numbers of devices by type.

All replicas share tensor degree T, number of stages P, micro-batch, recomputation, sharding and where the optimizer
states are: a strategy class. For every class the fastest R P tensor groups share the micro-batches; a pipeline of
P stages loses its fill, ``max_j (m - 1 - phi (P - 1 - j)) A_j + sum_j A_j`` with A_j a stage's forward and backward
seconds and phi the forward's share (from the bound of 1F1B in `hetrl.cost.pipeline`); on top of it come the gradient
reduce, the optimizer step, and what memory forbids is left out. The least over classes is the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetrl.cost.model import PHASES
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES, CostTables
from hetrl.search.bounds.classes import Classes, layer_bytes, layer_states, train_states
from hetrl.search.bounds.passes import (
    PIPELINES,
    Floats,
    Ints,
    pass_of,
    rates,
    spread_seconds,
    taken,
    tensor_groups,
)
from hetrl.spec.job import Job

MOST_REPLICAS_EXACT = 40
"""Larger numbers of replicas are bounded by intervals."""
REPLICA_STEP = 1.3
NUM_FILL_ROUNDS = 3


def training_bound(job: Job, tables: CostTables, index: int, points: Ints) -> Floats:
    """Seconds that no layout undercuts on device counts ``points`` ``[K, Y]``; infinite where nothing fits."""
    best = np.full(len(points), np.inf)
    model = int(tables.task_model[index])
    for recompute in (False, True):
        for shape in range(len(MICRO_BATCHES)):
            for degree_index in np.flatnonzero(tables.tensor_allowed[model]).tolist():
                with np.errstate(divide="ignore", invalid="ignore"):  # no devices of a type: infinite seconds
                    best = _class_bound(job, tables, index, points, degree_index, shape, recompute, best)
    return best


def _class_bound(
    job: Job,
    tables: CostTables,
    index: int,
    points: Ints,
    degree_index: int,
    shape: int,
    recompute: bool,
    best: Floats,
) -> Floats:
    """Return the least of ``best`` and all P, R, shardings and residencies; one row per class, one column per point."""
    model, batch, degree = int(tables.task_model[index]), job.batch, TENSOR_DEGREES[degree_index]
    micro_batch = MICRO_BATCHES[shape]
    sequences = batch.num_prompts * int(tables.task_sequences[index])
    amount = sequences / (micro_batch * batch.num_mini_batches)  # micro-batches of one update, as if all were full
    usable = (tables.type_supported > 0) & (tables.type_can_train > 0)
    groups = np.where(usable[None, :], tensor_groups(tables, points, degree), 0)
    stages, fewest, most = _pipelines(
        int(groups.sum(axis=1).max(initial=0)), int(tables.model_layers[model]), batch.num_prompts
    )
    if len(stages) == 0:
        return best

    hidden = micro_batch * batch.mean_sequence_tokens * float(tables.model_hidden_bytes[model])
    forward = pass_of(tables, model, degree_index, shape, hidden)
    train = tables.calibration[:, PHASES.index("train"), 0]
    update = forward.weighted(train * (4.0 if recompute else 3.0), 3.0 if recompute else 2.0)
    updates = batch.num_epochs * batch.num_mini_batches
    whole = updates * update
    if tables.task_role_is_actor[index]:  # old log-probabilities, once per step
        whole = whole + batch.num_mini_batches * forward.weighted(tables.calibration[:, PHASES.index("score"), 0], 1.0)
    work, speed = rates(whole, forward.weights, usable)
    if not np.isfinite(work):
        return best
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (updates * update / whole)[usable]
        ahead = (forward.weighted(train, 1.0) / update)[usable]
    share_least, share_most, phi = np.nanmin(share), np.nanmax(share), np.nanmax(ahead)

    takes = taken(groups, _fastest(speed), most * stages)
    total = np.asarray(sum(each * speed[kind] for kind, each in enumerate(takes)))
    enough = groups.sum(axis=1)[None, :] >= (fewest * stages)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.where(enough & (total > 0), work * amount / total, np.inf)
    hopeful = (plain < best[None, :]).any(axis=1)  # work alone rules out most classes
    hopeful &= (fewest <= amount) | (micro_batch == 1)  # a replica has a whole micro-batch on average
    if not hopeful.any():
        return best
    stages, fewest, most = stages[hopeful], fewest[hopeful], most[hopeful]
    takes, plain = [np.broadcast_to(each, plain.shape)[hopeful] for each in takes], plain[hopeful]
    enough = np.isfinite(plain)
    pipe = Pipe(work=work, amount=amount, stages=stages, most=most, share=(share_least, share_most), phi=phi)
    flowing = plain
    for _ in range(NUM_FILL_ROUNDS):  # the more time there is, the fuller the micro-batches of slow replicas
        fill = pipe.fill_of_slowest(groups, speed, flowing)
        for slope, per_group, lost in pipe.losses(fill):
            least, _ = spread_seconds(work, speed, takes, slope * (amount - most[:, None] * lost), per_group)
            flowing = np.maximum(flowing, least)
    prompt = int(tables.task_sequences[index]) / (micro_batch * batch.num_mini_batches)
    largest = -(-batch.num_prompts // most) * prompt  # micro-batches of the replica with the most prompts
    by_stage, by_pass = pipe.busiest(-(-batch.num_prompts // most), prompt)
    once = work / float(speed.max())  # a pass of one micro-batch through all stages takes at least this
    by_layer = whole[:, 0] if len(forward.counts) == 1 else np.full(len(speed), np.inf)
    slowest = _slowest_stage(groups, by_layer, stages, int(tables.model_layers[model]))
    pipelines = np.where(enough, np.maximum(flowing, by_stage * slowest + once * by_pass), np.inf)

    states = train_states(job, tables, model)
    classes = Classes(
        tables=tables,
        model=model,
        points=points,
        groups=groups,
        degree=degree,
        stages=stages,
        fewest=fewest,
        most=most,
        states=states,
        layers=layer_bytes(job, tables, model, degree_index, recompute),
        size=np.minimum(micro_batch, np.maximum(1.0, np.ceil(largest * micro_batch))),
        in_flight=np.maximum(1.0, np.ceil(largest)),
    )
    alone = np.flatnonzero((groups > 0).sum(axis=1) == 1)  # points with devices of one type
    whose = (groups[alone] > 0).argmax(axis=1)
    its_layer, its_head = (np.where(np.isfinite(each), each, 0.0) for each in (by_layer, whole[:, -1]))
    for sharding in ("none", "zero1", "fsdp"):
        reduce = classes.reduce_seconds(sharding, amount)
        for on_host in (False, True):
            seconds = np.where(classes.fits(sharding, on_host), pipelines, np.inf)
            if len(alone) and np.isfinite(by_layer).any():
                length = classes.longest_stage(sharding, on_host, its_head / np.maximum(its_layer, 1e-300))
                alike = by_stage * np.where(np.isfinite(length), length * its_layer, 0.0) + once * by_pass
                alike = np.where(np.isfinite(length), alike, np.inf)  # [C, Y]
                seconds[:, alone] = np.maximum(seconds[:, alone], alike[:, whose])
            step = classes.optimizer_seconds(sharding, on_host)
            seconds = seconds + updates * (reduce + step)
            if on_host and len(forward.counts) == 1 and (most == 1).any():
                layers_only = np.append(forward.counts, 0).astype(np.float64)
                scale = float(tables.calibration[:, PHASES.index("optimizer"), 0].min())
                joint = classes.joint_seconds(
                    *rates(whole, layers_only, usable),
                    layer_states(tables, model, states),
                    by_stage,
                    once * by_pass,
                    updates * scale,
                )
                seconds = np.maximum(seconds, np.where(most[:, None] == 1, joint, 0.0))
            best = np.minimum(best, seconds.min(axis=0))
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe:
    """What pipelines of P stages lose by filling, one row per class.

    With m micro-batches, ``fill`` full on average, a replica needs ``fill (sum_j A_j + (m - 1) A_i - phi (w - 1) A_i)``
    seconds for every stage i, where w is at most m and at most P. So with p = fill m it needs
    ``slope (p - lost) z + per_group S`` seconds, z being its slowest stage's and S all its stages' seconds.
    """

    work: float
    amount: float
    stages: Ints
    most: Ints
    share: tuple[float, float]
    phi: float

    def losses(self, fill: Floats) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Slope, ``per_group`` and ``lost`` for how full micro-batches are at least: for w <= P, for w <= m."""
        piped = (self.stages > 1).astype(np.float64)[:, None]
        least, most = self.share
        per_group = piped * fill * least
        for reach, slope in ((self.stages[:, None] - 1.0, 1.0), (np.zeros((len(self.stages), 1)), 1.0 - self.phi)):
            full = piped * most * (1.0 + self.phi * reach)
            lost = np.maximum(fill * full, full - (1.0 - fill) * least * piped / slope)
            yield np.where(piped > 0, slope, 1.0), per_group, lost

    def busiest(self, shares: Ints, prompt: float) -> tuple[Floats, Floats]:
        """Numbers (b, c), ``[C, 1]`` each: a replica with at least ``shares`` prompts needs ``b z + c S`` seconds.

        ``prompt`` are the micro-batches of one prompt. The seconds are linear in S / z, which is at most P, and the
        least of lines over all shares is above the chord between its ends.
        """
        result = np.zeros((2, len(shares)))
        least, most = self.share
        for row, (share, stages) in enumerate(zip(shares.tolist(), self.stages.tolist(), strict=True)):
            if stages == 1:
                result[:, row] = share * prompt, 0.0
                continue
            amounts = (share + np.arange(2 + int(stages / prompt))) * prompt
            number = np.ceil(amounts)
            fill = amounts / number
            by_stage = fill * (number - most * (1.0 + self.phi * (np.minimum(number, stages) - 1.0)))
            low, high = by_stage.min(), (by_stage + fill * least * stages).min()
            result[:, row] = low, (high - low) / stages
        return result[0][:, None], result[1][:, None]

    def fill_of_slowest(self, groups: Ints, speed: Floats, seconds: Floats) -> Floats:
        """How full micro-batches are at least, on a replica of the slowest groups with that many seconds.

        p micro-batches are ``p / ceil(p) >= p / (p + 1)`` full. A replica may be given fewer than it could handle, but
        the bound asks for what all replicas could handle together; with x lost to filling, that is the p that solves
        ``p + x p / (p + 1) = y``.
        """
        slow = np.where((groups > 0) & (speed > 0)[None, :], speed[None, :], np.inf).min(axis=1)
        with np.errstate(invalid="ignore"):
            y = seconds * self.stages[:, None] * slow[None, :] / self.work
        x = np.maximum(self.share[1] * self.stages[:, None], 0.0)
        handled = 0.5 * (y - 1.0 - x + np.sqrt((y - 1.0 - x) ** 2 + 4.0 * y))
        handled = np.where((self.most == 1)[:, None], self.amount, handled)
        handled = np.where(np.isfinite(handled), np.maximum(handled, 0.0), 0.0)
        exact = self.amount / np.ceil(self.amount)
        return np.where((self.most == 1)[:, None], exact, handled / (handled + 1.0))


def _slowest_stage(groups: Ints, by_layer: Floats, stages: Ints, num_layers: int) -> Floats:
    """Seconds of the slowest stage where whole layers are dealt to the P fastest groups, ``[C, K]``."""
    result = np.zeros((len(stages), len(groups)))
    order = [int(kind) for kind in np.argsort(by_layer, kind="stable") if np.isfinite(by_layer[kind])]
    if not order:
        return result
    lengths, where = np.unique(stages, return_inverse=True)
    takes = taken(groups, order, lengths)
    low = np.zeros((len(lengths), len(groups)))
    high = np.full_like(low, by_layer[order[-1]] * num_layers)
    for _ in range(20):
        middle = (low + high) / 2
        placed = sum(takes[kind] * np.floor(middle / by_layer[kind]) for kind in order)
        enough = placed >= num_layers
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(low[where])


def _fastest(speed: Floats) -> list[int]:
    return [int(kind) for kind in np.argsort(-speed, kind="stable") if speed[kind] > 0]


def _pipelines(num_groups: int, num_layers: int, num_prompts: int) -> tuple[Ints, Ints, Ints]:
    """All (P, fewest R, most R) that so many tensor groups may form; intervals of R where there are many."""
    found = []
    for stages in PIPELINES:
        most = min(num_groups // stages, num_prompts)
        if stages > num_layers or most < 1:
            break
        low = 1
        while low <= most:
            high = low if low <= MOST_REPLICAS_EXACT else min(most, int(low * REPLICA_STEP))
            found.append((stages, low, high))
            low = high + 1
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
