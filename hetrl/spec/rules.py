"""Hard rules on how a model may be split. Violating one means: not a candidate.

Every function returns all violated rules as `Problem` entries, each with the rule's identifier and what would be
valid; an empty list means allowed. They are pure and cheap. Rules about devices are in `fleet_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from hetrl.errors import Problem
from hetrl.spec.model import Model

VOCAB_MULTIPLE = 64  # engines pad the vocabulary to a multiple of this before dividing it (vLLM)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def split_widths(model: Model) -> tuple[tuple[str, int], ...]:
    """Return the distinct MLP widths that tensor parallelism divides, with their names."""
    widths: dict[tuple[str, int], None] = {}
    for layer in dict.fromkeys(model.layers):
        for name, width in (
            ("intermediate_size", layer.intermediate_size),
            ("moe_intermediate_size", layer.moe_intermediate_size),
            ("shared_intermediate_size", layer.shared_intermediate_size),
        ):
            if width:
                widths[(name, width)] = None
    return tuple(widths)


def kv_heads_allow(kv_heads: int, degree: int, *, kv_replication: bool = True) -> bool:
    """Whether key/value heads can be spread over ``degree`` ranks, each head whole on one or several ranks."""
    return kv_heads % degree == 0 or (kv_replication and degree % kv_heads == 0)


@cache
def valid_tensor_degrees(
    model: Model, limit: int = 0, *, kv_replication: bool = True, quantized: bool = False, expert_parallel: bool = False
) -> tuple[int, ...]:
    """Return every tensor degree the model allows, in ascending order, up to ``limit`` (0: no limit).

    Parameters
    ----------
    kv_replication
        Whether the runtime repeats key/value heads when there are fewer than ranks (vLLM does).
    quantized
        Whether the weights stay in the checkpoint's block quantisation.
    expert_parallel
        Whether experts are spread whole instead of being cut.
    """
    degrees = _divisors(model.num_heads)
    return tuple(
        degree
        for degree in degrees
        if (not limit or degree <= limit)
        and not _degree_violations(model, degree, kv_replication, quantized, expert_parallel)
    )


def _degree_violations(
    model: Model, degree: int, kv_replication: bool, quantized: bool, expert_parallel: bool
) -> list[tuple[str, str]]:
    """Return (rule, message) of each rule that forbids the degree."""
    broken: list[tuple[str, str]] = []
    if model.num_heads % degree:
        broken.append(("TP_HEADS", f"{model.num_heads} attention heads cannot be divided by {degree}"))
    for kv_heads in model.kv_head_counts:
        if not kv_heads_allow(kv_heads, degree, kv_replication=kv_replication):
            broken.append(
                ("TP_KV_HEADS", f"{kv_heads} key/value heads can neither be divided by {degree} nor repeated evenly")
            )
    for name, width in split_widths(model):
        if expert_parallel and name == "moe_intermediate_size":
            continue
        if width % degree:
            broken.append(("TP_INTERMEDIATE", f"{name} {width} cannot be divided by {degree}"))
        elif quantized and degree > 1 and model.quantization_block and (width // degree) % model.quantization_block:
            broken.append(
                (
                    "QUANT_BLOCK",
                    f"{name} {width} / {degree} = {width // degree} is not a multiple of the quantisation block "
                    f"{model.quantization_block}",
                )
            )
    return broken


def tensor_parallel_problems(
    model: Model,
    degree: int,
    *,
    num_devices: int = 0,
    kv_replication: bool = True,
    quantized: bool = False,
    expert_parallel: bool = False,
    path: str = "tensor_parallel",
) -> list[Problem]:
    """Check a tensor degree against heads, key/value heads, MLP widths and quantisation blocks.

    The valid alternatives name the usable degrees (at most ``num_devices`` if given), and pipeline stages.

    Rules: TP_HEADS, TP_KV_HEADS, TP_INTERMEDIATE, QUANT_BLOCK.
    """
    if degree < 1:
        return [Problem(path=path, message="a degree is at least 1", found=str(degree), rule="TP_HEADS")]
    broken = _degree_violations(model, degree, kv_replication, quantized, expert_parallel)
    if not broken:
        return []
    usable = valid_tensor_degrees(
        model, num_devices, kv_replication=kv_replication, quantized=quantized, expert_parallel=expert_parallel
    )
    valid = (
        "tensor degree " + ", ".join(map(str, usable)) + alternatives(model, degree, usable, quantized, expert_parallel)
    )
    return [
        Problem(path=path, message=f"{model.name}: {message}", found=str(degree), rule=rule, valid=valid)
        for rule, message in broken
    ]


def alternatives(model: Model, degree: int, usable: Sequence[int], quantized: bool, expert_parallel: bool) -> str:
    """Return other ways to use ``degree`` devices, in words."""
    words = []
    if degree <= model.num_layers:
        stages = split_layers(model.num_layers, degree)
        words.append(f"{degree} pipeline stages of {_describe(stages)} layers")
    largest = max((d for d in usable if d < degree and degree % d == 0), default=0)
    if largest > 1:
        words.append(f"{degree // largest} replicas of tensor degree {largest}")
    if quantized and not expert_parallel and any(layer.num_experts for layer in model.layers):
        words.append("expert parallelism")
    if quantized and model.quantization_block:
        words.append("bf16 weights")
    return "; or " + ", or ".join(words) if words else ""


def padded_vocab(
    vocab_size: int, tensor_parallel: int, *, total_multiple: int = VOCAB_MULTIPLE, rows_multiple: int = 1
) -> int:
    """Return the padded vocabulary: a multiple of ``total_multiple`` with whole, equal shares per rank.

    Parameters
    ----------
    total_multiple
        vLLM pads to a multiple of 64; 1 gives the least padding.
    rows_multiple
        Rows of each rank are a multiple of this: 128 for Megatron, 64 for ColossalAI.

    Examples
    --------
    >>> padded_vocab(250682, 8), padded_vocab(151669, 4, total_multiple=1), padded_vocab(151669, 4, rows_multiple=128)
    (250688, 151672, 152064)
    """
    step = math.lcm(total_multiple, rows_multiple * tensor_parallel)
    return -(-vocab_size // step) * step


def vocab_rows_per_rank(
    vocab_size: int, tensor_parallel: int, *, total_multiple: int = VOCAB_MULTIPLE, rows_multiple: int = 1
) -> int:
    """Return the rows of embedding and head on each rank, padding included."""
    return (
        padded_vocab(vocab_size, tensor_parallel, total_multiple=total_multiple, rows_multiple=rows_multiple)
        // tensor_parallel
    )


def split_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the most even split, longer stages first.

    >>> split_layers(46, 4)
    (12, 12, 11, 11)
    """
    short, longer = divmod(num_layers, num_stages)
    return (short + 1,) * longer + (short,) * (num_stages - longer)


def _describe(stages: Sequence[int]) -> str:
    if len(stages) <= 8:
        return ",".join(map(str, stages))
    counts = {size: list(stages).count(size) for size in dict.fromkeys(stages)}
    return " and ".join(f"{count} of {size}" for size, count in counts.items())


def pipeline_problems(
    num_layers: int,
    layers_per_stage: Sequence[int] = (),
    *,
    num_stages: int = 0,
    even: bool = False,
    path: str = "pipeline",
) -> list[Problem]:
    """Check a layer split, or a number of stages.

    Parameters
    ----------
    layers_per_stage
        The split; empty if only ``num_stages`` is known.
    even
        Whether the runtime needs equal stages.

    Rules: PP_SPLIT.
    """
    stages = len(layers_per_stage) or num_stages
    if stages < 1:
        return [Problem(path=path, message="at least one stage is needed", found=str(num_stages), rule="PP_SPLIT")]
    if stages > num_layers:
        return [
            Problem(
                path=path,
                message=f"{stages} stages for {num_layers} layers",
                found=str(stages),
                valid=f"at most {num_layers} stages",
                rule="PP_SPLIT",
            )
        ]
    offer = _describe(split_layers(num_layers, stages))
    if layers_per_stage:
        problems = []
        if sum(layers_per_stage) != num_layers:
            sum_text = "+".join(map(str, layers_per_stage)) if stages <= 16 else "the stages' sum"
            problems.append(
                Problem(
                    path=path,
                    message=f"{sum_text} = {sum(layers_per_stage)}, but the model has {num_layers} layers",
                    found=_describe(layers_per_stage),
                    valid=offer,
                    rule="PP_SPLIT",
                )
            )
        if min(layers_per_stage) < 1:
            problems.append(
                Problem(
                    path=path,
                    message="a stage without a layer",
                    found=_describe(layers_per_stage),
                    valid=offer,
                    rule="PP_SPLIT",
                )
            )
        if even and len(set(layers_per_stage)) > 1:
            problems.append(
                Problem(
                    path=path,
                    message="the runtime needs equal stages",
                    found=_describe(layers_per_stage),
                    valid=_stage_counts(num_layers, stages),
                    rule="PP_SPLIT",
                )
            )
        return problems
    if even and num_layers % stages:
        valid = f"uneven stages {offer}, or {_stage_counts(num_layers, stages)}"
        return [
            Problem(
                path=path,
                message=f"{num_layers} layers cannot be divided evenly by {stages} stages",
                found=str(stages),
                valid=valid,
                rule="PP_SPLIT",
            )
        ]
    return []


def _stage_counts(num_layers: int, near: int) -> str:
    counts = sorted(_divisors(num_layers), key=lambda count: (abs(count - near), count))[:4]
    return "pipeline stages " + ", ".join(map(str, sorted(counts)))


def ends_split(
    num_layers: int, num_stages: int, first: int = 0, last: int = 0
) -> tuple[tuple[int, ...], list[Problem]]:
    """Return the split with given first and last stage and equal ones between, and its problems.

    ``first`` or ``last`` of 0 means: as the middle ones.

    >>> ends_split(61, 12, last=6)[0]
    (5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6)
    """
    middle = num_stages - bool(first) - bool(last)
    rest = num_layers - first - last
    if middle < 0 or (middle == 0 and rest) or (middle > 0 and (rest < middle or rest % middle)):
        stages = (
            ((first,) if first else ())
            + (max(rest // middle, 0) if middle > 0 else 0,) * max(middle, 0)
            + ((last,) if last else ())
        )
        if middle == 0:
            stages = tuple(size for size in (first, last) if size)
        message = f"{rest} layers remain for {max(middle, 0)} middle stages, not a whole number each"
        if middle == 0:
            message = f"{'+'.join(map(str, stages))} = {sum(stages)}, but the model has {num_layers} layers"
        problem = Problem(
            path="pipeline",
            message=message,
            found=f"first {first or 'even'}, last {last or 'even'}",
            valid=_describe(split_layers(num_layers, max(num_stages, 1))),
            rule="PP_SPLIT",
        )
        return stages, [problem]
    each = rest // middle if middle else 0
    return ((first,) if first else ()) + (each,) * middle + ((last,) if last else ()), []


def expert_parallel_problems(
    model: Model, degree: int, *, group_size: int = 0, supported: bool = True, path: str = "expert_parallel"
) -> list[Problem]:
    """Check an expert degree: it divides the experts, and the devices of the tensor and data groups it spreads over.

    Rules: EP_DENSE, EP_DIVIDES, EP_UNSUPPORTED.
    """
    counts = sorted({layer.num_experts for layer in model.layers if layer.num_experts})
    if degree == 1:
        return []
    problems = []
    if degree < 1 or not counts:
        return [
            Problem(
                path=path,
                message=f"{model.name} has no experts to spread",
                found=str(degree),
                valid="1",
                rule="EP_DENSE",
            )
        ]
    if not supported:
        problems.append(
            Problem(
                path=path,
                message="expert parallelism is not part of this runtime",
                found=str(degree),
                valid="1",
                rule="EP_UNSUPPORTED",
            )
        )
    for count in counts:
        if count % degree:
            problems.append(
                Problem(
                    path=path,
                    message=f"{count} experts cannot be divided by {degree}",
                    found=str(degree),
                    valid=", ".join(map(str, _divisors(count))),
                    rule="EP_DIVIDES",
                )
            )
    if group_size and group_size % degree:
        valid = ", ".join(str(d) for d in _divisors(group_size) if all(count % d == 0 for count in counts))
        problems.append(
            Problem(
                path=path,
                message=f"does not divide the {group_size} devices of its stage",
                found=str(degree),
                valid=valid,
                rule="EP_DIVIDES",
            )
        )
    return problems


def batch_problems(
    num_sequences: int,
    num_replicas: int,
    *,
    micro_batch_size: int = 1,
    group_size: int = 1,
    per_replica: int = 1,
    uneven: bool = False,
    path: str = "batch",
) -> list[Problem]:
    """Check that a batch can be shared out to replicas.

    Parameters
    ----------
    num_sequences
        Sequences (or prompts) of one split: a step, a mini-batch.
    micro_batch_size
        Sequences of one micro-batch; shares are whole micro-batches where shares must be equal.
    group_size
        Sequences that stay together (responses of one prompt in GRPO).
    per_replica
        Further equal splits inside a replica, e.g. its data workers.
    uneven
        Whether the runtime takes unequal shares (hetrl's does); then every replica only needs one unit.

    Rules: BATCH_SPLIT.
    """
    unit = math.lcm(micro_batch_size, group_size) if not uneven else group_size
    shares = num_replicas * per_replica
    if num_sequences < 1 or num_replicas < 1:
        return [
            Problem(
                path=path,
                message="sequences and replicas are at least 1",
                found=f"{num_sequences}, {num_replicas}",
                rule="BATCH_SPLIT",
            )
        ]
    if num_sequences % group_size:
        return [
            _batch_problem(
                path, num_sequences, group_size, f"{num_sequences} sequences are not whole groups of {group_size}"
            )
        ]
    if uneven:
        if num_sequences < shares * unit:
            return [
                Problem(
                    path=path,
                    message=f"{num_sequences} sequences give some of {shares} replicas nothing (units of {unit})",
                    found=str(num_sequences),
                    valid=f"at least {shares * unit} sequences, or at most {max(num_sequences // unit, 1)} replicas",
                    rule="BATCH_SPLIT",
                )
            ]
        return []
    step = shares * unit
    if num_sequences % step:
        parts = f"{shares} equal shares" + (f" of whole units of {unit}" if unit > 1 else "")
        return [
            _batch_problem(
                path, num_sequences, step, f"{num_sequences} sequences cannot be divided into {parts}", shares, unit
            )
        ]
    return []


def _batch_problem(path: str, num_sequences: int, step: int, message: str, shares: int = 0, unit: int = 1) -> Problem:
    below, above = num_sequences // step * step, (num_sequences // step + 1) * step
    valid = f"{below} or {above} sequences" if below else f"{above} sequences"
    if shares:
        fitting = [count for count in range(1, 2 * shares + 1) if num_sequences % (count * unit) == 0]
        near = sorted(sorted(fitting, key=lambda count: (abs(count - shares), count))[:2])
        if near:
            valid += f", or {' or '.join(map(str, near))} shares"
    return Problem(path=path, message=message, found=str(num_sequences), valid=valid, rule="BATCH_SPLIT")
