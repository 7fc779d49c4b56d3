"""Unit costs, amounts and the fleet, lowered once per job to arrays: the data model of the compiled kernels.

Every entry is read from the unit costs, the amounts or the topology; no formula stands here a second time. Axes:
``N`` nodes, ``Y`` device types, ``M`` models, ``T`` tensor degrees, ``S`` micro-batch shapes, ``K`` kinds of layers,
``L`` layers, ``C`` concurrency grid, ``A`` tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.collectives import OPERATIONS, collective_terms
from hetrl.cost.generation import NUM_TAIL_SEGMENTS, in_flight_tokens, survival
from hetrl.cost.model import PHASES
from hetrl.cost.residency import PREFILL_ACTIVATION_TOKENS, device_limit, trains_eagerly
from hetrl.cost.unit import CONCURRENCY_GRID, DECODE_CONTEXTS, PREFILL_CHUNK_TOKENS, UnitCosts
from hetrl.spec.devices import DTYPE_BYTES, DeviceType
from hetrl.spec.fleet_rules import running_problems
from hetrl.spec.job import Job
from hetrl.spec.model import Model
from hetrl.spec.topology import Link, Topology
from hetrl.workload.flops import lora_parameters
from hetrl.workload.memory import (
    activation_bytes_per_token,
    allowances,
    kv_bytes_per_token,
    logits_bytes,
    train_state_bytes_per_parameter,
)
from hetrl.workload.messages import activation_bytes, rollout_bytes, score_bytes

TENSOR_DEGREES = (1, 2, 4, 8, 16)
MICRO_BATCHES = (1, 2, 4, 8, 16)
TASK_KINDS = ("train", "score", "generate")

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class CostTables(NamedTuple):
    """Arrays in C order; seconds, bytes and bytes per second. See the module for the axes."""

    # fleet
    node_type: Ints  # [N]
    node_devices: Ints  # [N]
    node_kind: Ints  # [N] nodes of one kind are alike in everything but their links to others
    node_limit: Floats  # [N] usable bytes of one device
    node_host_ram: Floats  # [N]
    node_host_link: Floats  # [N]
    node_host_memory: Floats  # [N] bandwidth
    node_nic: Floats  # [N]
    node_usd: Floats  # [N] dollars per hour of one device, nan if unknown
    link_latency: Floats  # [N, N], the diagonal is the node's own link
    link_bandwidth: Floats  # [N, N]
    link_kind: Ints  # [N, N] equal numbers are equal links
    node_collective: Floats  # [N, 3, ranks + 1, 3] inside a node: operation, ranks -> offset, per sqrt(byte), per byte
    # device types
    type_flops: Floats  # [Y] in the job's dtype (else its fastest): orders devices by speed
    type_memory: Floats  # [Y] bytes
    type_bandwidth: Floats  # [Y]
    type_vendor: Ints  # [Y]
    type_is_cpu: Ints  # [Y]
    type_supported: Ints  # [Y] bit set of TASK_KINDS that a type can run in the job's dtypes
    type_allowance: Floats  # [Y, 5] process, engine, communication, fragmentation, host process
    calibration: Floats  # [Y, 7, 3] phase (in the order of PHASES) -> scale, per iteration, per sequence
    # models
    model_layers: Ints  # [M]
    model_kinds: Ints  # [M]
    model_tied: Ints  # [M] a head on another stage than the embedding keeps its own copy
    model_is_lm: Ints  # [M]
    model_outside: Floats  # [M, 2] parameters beside the layers: embedding, final norm and head
    model_parameters: Floats  # [M]
    model_lora: Floats  # [M] trained parameters with LoRA
    model_hidden_bytes: Floats  # [M] hidden states of one token
    parameters_before: Floats  # [M, L + 1]
    kinds_before: Ints  # [M, K, L + 1] layers of a kind before layer l
    kind_parameters: Floats  # [M, K]
    kind_window: Floats  # [M, K] inf for full attention
    kind_activation: Floats  # [M, T, K] bytes per token kept for the backward pass
    kind_kv: Floats  # [M, T, K] KV bytes per token
    model_widest_activation: Floats  # [M, T]
    model_logits: Floats  # [M, T] bytes per token
    tensor_allowed: Ints  # [M, T]
    # seconds
    layer_seconds: Floats  # [M, Y, T, S, K]; S: training micro-batches, then prefill chunks of 1, 2, ... prompts
    head_seconds: Floats  # [M, Y, T, S]
    decode_projections: Floats  # [M, Y, T, K, C]
    decode_attention: Floats  # [M, Y, T, K, 2, C]
    decode_head: Floats  # [M, Y, T, C]
    concurrency_grid: Floats  # [C]
    decode_contexts: Floats  # [2]
    # tasks
    task_kind: Ints  # [A] index in TASK_KINDS
    task_model: Ints  # [A]
    task_role: Ints  # [A]
    task_sequences: Ints  # [A] per prompt
    task_trained: Ints  # [A] some task trains this role
    task_role_is_actor: Ints  # [A]
    task_in_flight: Floats  # [A] mean KV tokens of a running sequence
    task_needs: Ints  # [A, A] 1 where the row needs the column
    transfer_bytes: Floats  # [A, A] from the column to the row
    transfer_weights: Floats  # [A] bytes of the model's weights
    # job
    tail_times: Floats  # [16] response tokens at the middle of every tail segment
    tail_alive: Floats  # [16] fraction of responses that are longer
    scalars: Floats  # see SCALARS


SCALARS = (
    "num_prompts",
    "prompt_tokens",
    "mean_response",
    "max_response",
    "max_sequence",
    "num_mini_batches",
    "num_epochs",
    "prefill_chunk",
    "prefill_activation_tokens",
    "bytes_per_element",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "lora",
    "gradient_overlap",
    "gather_overlap",
    "train_logits_factor",
    "online",
    "staleness",
)
"""Names of the entries of `CostTables.scalars`, in order."""


def lower(job: Job, costs: UnitCosts, *, tensor_allowed: Callable[[Model, int], bool]) -> CostTables:
    """Lower a job to arrays.

    Parameters
    ----------
    tensor_allowed
        The hard rules on tensor degrees.
    """
    topology = job.topology
    types = topology.device_types
    models = tuple({_look(task.model): task.model for task in job.workflow.tasks}.values())
    degrees = [degree for degree in TENSOR_DEGREES if degree <= max(node.num_devices for node in topology.nodes)]
    allowed = np.array(
        [[degree in degrees and tensor_allowed(model, degree) for degree in TENSOR_DEGREES] for model in models],
        dtype=np.int32,
    )
    return CostTables(
        **_fleet(job, types),
        **_types(job, costs, types),
        **_models(job, costs, models),
        tensor_allowed=allowed,
        **_seconds(job, costs, types, models, allowed),
        **_tasks(job, models),
    )


def _look(model: Model) -> tuple[str, str]:
    """One checkpoint may serve with its output head and with a scalar one."""
    return model.name, model.head


def _ints(values: object) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int32)


def _floats(values: object) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


def _fleet(job: Job, types: tuple[DeviceType, ...]) -> dict[str, Any]:
    topology = job.topology
    nodes = topology.nodes
    number = {kind.name: index for index, kind in enumerate(types)}
    alike: dict[object, int] = {}
    kinds = [
        alike.setdefault(
            (
                number[node.device_type.name],
                node.num_devices,
                node.intra_link,
                node.host_ram_bytes,
                node.host_link_bytes_per_second,
                node.host_memory_bytes_per_second,
                node.nic_bytes_per_second,
            ),
            len(alike),
        )
        for node in nodes
    ]
    latency, bandwidth = link_matrices(topology)
    pairs = np.stack([latency.ravel(), bandwidth.ravel()], axis=1)
    _, link_kind = np.unique(pairs, axis=0, return_inverse=True)
    return {
        "node_type": _ints([number[node.device_type.name] for node in nodes]),
        "node_devices": _ints([node.num_devices for node in nodes]),
        "node_kind": _ints(kinds),
        "node_limit": _floats([device_limit(job, topology.first_device[index]) for index in range(len(nodes))]),
        "node_host_ram": _floats([node.host_ram_bytes for node in nodes]),
        "node_host_link": _floats([node.host_link_bytes_per_second for node in nodes]),
        "node_host_memory": _floats([node.host_memory_bytes_per_second for node in nodes]),
        "node_nic": _floats([node.nic_bytes_per_second for node in nodes]),
        "node_usd": _floats(
            [np.nan if node.usd_per_hour is None else node.usd_per_hour / node.num_devices for node in nodes]
        ),
        "link_latency": latency,
        "link_bandwidth": bandwidth,
        "link_kind": _ints(link_kind.reshape(len(nodes), len(nodes))),
        "node_collective": node_collectives(topology),
    }


def node_collectives(topology: Topology) -> Floats:
    """Terms of collectives inside every node, ``[N, operations, ranks + 1, 3]``; nothing is paid for a single rank."""
    most = max(*TENSOR_DEGREES, *(node.num_devices for node in topology.nodes))
    table = np.zeros((len(topology.nodes), len(OPERATIONS), most + 1, 3))
    known: dict[Link, Floats] = {}
    for index, node in enumerate(topology.nodes):
        if node.intra_link not in known:
            each = [
                [collective_terms(operation, ranks, node.intra_link) for ranks in range(2, most + 1)]
                for operation in OPERATIONS
            ]
            known[node.intra_link] = _floats(
                [[(t.offset_seconds, t.seconds_per_sqrt_byte, t.seconds_per_byte) for t in row] for row in each]
            )
        table[index, :, 2:] = known[node.intra_link]
    return table


def link_matrices(topology: Topology) -> tuple[Floats, Floats]:
    """Latency and bandwidth between all nodes, ``[N, N]``.

    Links that were not given depend on few properties of the two nodes, so one pair of each combination is asked.
    """
    nodes = topology.nodes
    size = len(nodes)
    given = {node for pair in topology.node_links for node in pair}
    looks: dict[object, int] = {}
    look = [
        looks.setdefault(
            index
            if index in given
            else (
                node.nic_bytes_per_second,
                node.network_latency_seconds,
                node.rack,
                node.zone,
                node.region,
                node.nvlink_domain,
                node.intra_link,
            ),
            len(looks),
        )
        for index, node in enumerate(nodes)
    ]
    members: dict[int, list[int]] = {}
    for index, each in enumerate(look):
        members.setdefault(each, []).append(index)
    latency, bandwidth = np.zeros((size, size)), np.zeros((size, size))
    for sources in members.values():
        for targets in members.values():
            pair = next(((a, b) for a in sources[:1] for b in targets[:2] if a != b), (sources[0], targets[0]))
            link = topology.node_link(*pair)
            block = np.ix_(sources, targets)
            latency[block], bandwidth[block] = link.latency_seconds, link.bytes_per_second
    for index, node in enumerate(nodes):
        latency[index, index] = node.intra_link.latency_seconds
        bandwidth[index, index] = node.intra_link.bytes_per_second
    return latency, bandwidth


def _types(job: Job, costs: UnitCosts, types: tuple[DeviceType, ...]) -> dict[str, Any]:
    dtype = job.precision.dtype
    vendors = list(dict.fromkeys(kind.vendor for kind in types))
    allowance = [allowances(kind.vendor) for kind in types]
    calibrations = [[costs.model.calibration(kind.name, phase) for phase in PHASES] for kind in types]
    return {
        "type_flops": _floats(
            [kind.flops_per_second.get(dtype, max(kind.flops_per_second.values())) for kind in types]
        ),
        "type_memory": _floats([kind.memory_bytes for kind in types]),
        "type_bandwidth": _floats([kind.memory_bytes_per_second for kind in types]),
        "type_vendor": _ints([vendors.index(kind.vendor) for kind in types]),
        "type_is_cpu": _ints([kind.vendor == "cpu" for kind in types]),
        "type_supported": _ints(
            [
                sum(1 << bit for bit, use in enumerate(TASK_KINDS) if not running_problems(kind, use, job.precision))
                for kind in types
            ]
        ),
        "type_allowance": _floats(
            [
                (
                    each.process_bytes,
                    each.engine_bytes,
                    each.communication_bytes,
                    each.fragmentation,
                    each.host_process_bytes,
                )
                for each in allowance
            ]
        ),
        "calibration": _floats(
            [
                [(each.scale, each.per_iteration_seconds, each.per_sequence_seconds) for each in row]
                for row in calibrations
            ]
        ),
    }


def _models(job: Job, costs: UnitCosts, models: tuple[Model, ...]) -> dict[str, Any]:
    size = costs.bytes_per_element
    kv_size = DTYPE_BYTES[job.precision.kv_cache_dtype]
    most_layers = max(model.num_layers for model in models)
    most_kinds = max(len(model.layer_kinds[0]) for model in models)
    shape = (len(models), len(TENSOR_DEGREES))
    before = np.zeros((len(models), most_layers + 1))
    kinds_before = np.zeros((len(models), most_kinds, most_layers + 1), dtype=np.int32)
    kind_parameters = np.zeros((len(models), most_kinds))
    kind_window = np.full((len(models), most_kinds), np.inf)
    activation, kv = np.zeros((*shape, most_kinds)), np.zeros((*shape, most_kinds))
    widest, logits = np.zeros(shape), np.zeros(shape)
    for m, model in enumerate(models):
        kinds, index = model.layer_kinds
        before[m, : model.num_layers + 1] = model.parameters_before
        for k, layer in enumerate(kinds):
            kinds_before[m, k, 1 : model.num_layers + 1] = np.cumsum(np.array(index) == k)
            kind_parameters[m, k] = layer.num_parameters
            kind_window[m, k] = layer.window or np.inf
            for t, degree in enumerate(TENSOR_DEGREES):
                activation[m, t, k] = activation_bytes_per_token(
                    model, layer, degree, bytes_per_element=size, eager=trains_eagerly(job)
                )
                first = index.index(k)
                kv[m, t, k] = kv_bytes_per_token(
                    model, first_layer=first, num_layers=1, tensor_parallel=degree, bytes_per_element=kv_size
                )
        for t, degree in enumerate(TENSOR_DEGREES):
            widest[m, t] = activation_bytes_per_token(model, model.widest_layer, degree, bytes_per_element=size)
            logits[m, t] = logits_bytes(model, 1, degree, bytes_per_element=size)
    rank = job.precision.lora_rank
    return {
        "model_layers": _ints([model.num_layers for model in models]),
        "model_kinds": _ints([len(model.layer_kinds[0]) for model in models]),
        "model_tied": _ints([model.tied_embeddings and model.head == "lm" for model in models]),
        "model_is_lm": _ints([model.head == "lm" for model in models]),
        "model_outside": _floats(
            [(model.embedding_parameters, model.final_norm_parameters + model.head_parameters) for model in models]
        ),
        "model_parameters": _floats([model.num_parameters for model in models]),
        "model_lora": _floats([lora_parameters(model, rank) if rank > 0 else 0 for model in models]),
        "model_hidden_bytes": _floats(
            [activation_bytes(model, num_sequences=1, tokens=1, bytes_per_element=size) for model in models]
        ),
        "parameters_before": before,
        "kinds_before": kinds_before,
        "kind_parameters": kind_parameters,
        "kind_window": kind_window,
        "kind_activation": activation,
        "kind_kv": kv,
        "model_widest_activation": widest,
        "model_logits": logits,
    }


def prefill_chunk(job: Job) -> int:
    """Prompts that an engine's prefill takes at once."""
    return max(1, PREFILL_CHUNK_TOKENS // job.batch.prompt_tokens)


def _seconds(
    job: Job, costs: UnitCosts, types: tuple[DeviceType, ...], models: tuple[Model, ...], allowed: Ints
) -> dict[str, Any]:
    tokens = job.batch.mean_sequence_tokens
    chunk = min(prefill_chunk(job), job.batch.num_prompts)
    shapes = [(size, tokens, True) for size in MICRO_BATCHES]
    shapes += [(size, float(job.batch.prompt_tokens), False) for size in range(1, chunk + 1)]
    most_kinds = max(len(model.layer_kinds[0]) for model in models)
    axes = (len(models), len(types), len(TENSOR_DEGREES))
    layer = np.full((*axes, len(shapes), most_kinds), np.inf)
    head = np.full((*axes, len(shapes)), np.inf)
    projections = np.full((*axes, most_kinds, len(CONCURRENCY_GRID)), np.inf)
    attention = np.full((*axes, most_kinds, 2, len(CONCURRENCY_GRID)), np.inf)
    decode_head = np.full((*axes, len(CONCURRENCY_GRID)), np.inf)
    generating = {_look(task.model) for task in job.workflow.tasks if task.kind == "generate"}
    for m, y, t in np.ndindex(*axes):
        model, device, degree = models[m], types[y], TENSOR_DEGREES[t]
        if not allowed[m, t] or not device.supports(job.precision.dtype):
            continue
        used = shapes if _look(model) in generating else shapes[: len(MICRO_BATCHES)]
        costs.prepare_heads(
            device,
            model,
            degree,
            [sequences * length if all_logits else sequences for sequences, length, all_logits in used],
        )
        for k in range(len(model.layer_kinds[0])):
            costs.prepare_layers(device, model, k, degree, [(sequences, length) for sequences, length, _ in used])
            for s, (sequences, length, _) in enumerate(used):
                layer[m, y, t, s, k] = costs.layer_forward_seconds(device, model, k, degree, sequences, length)
            if _look(model) in generating:
                projections[m, y, t, k], attention[m, y, t, k] = costs.decode_table(device, model, degree, k)
        for s, (sequences, length, all_logits) in enumerate(used):
            head[m, y, t, s] = costs.head_seconds(
                device, model, degree, sequences * length if all_logits else sequences
            )
        if _look(model) in generating:
            decode_head[m, y, t] = costs.decode_head_seconds(
                device, model, degree, np.array(CONCURRENCY_GRID, dtype=np.float64)
            )
    return {
        "layer_seconds": layer,
        "head_seconds": head,
        "decode_projections": projections,
        "decode_attention": attention,
        "decode_head": decode_head,
        "concurrency_grid": _floats(CONCURRENCY_GRID),
        "decode_contexts": _floats(DECODE_CONTEXTS),
        "scalars": _scalars(job, costs, chunk),
    }


def _scalars(job: Job, costs: UnitCosts, chunk: int) -> Floats:
    batch = job.batch
    each = train_state_bytes_per_parameter(job.precision)
    values = {
        "num_prompts": batch.num_prompts,
        "prompt_tokens": batch.prompt_tokens,
        "mean_response": batch.mean_response_tokens,
        "max_response": batch.max_response_tokens,
        "max_sequence": batch.max_sequence_tokens,
        "num_mini_batches": batch.num_mini_batches,
        "num_epochs": batch.num_epochs,
        "prefill_chunk": chunk,
        "prefill_activation_tokens": PREFILL_ACTIVATION_TOKENS,
        "bytes_per_element": costs.bytes_per_element,
        "weight_bytes": each.weights,
        "gradient_bytes": each.gradients,
        "optimizer_bytes": each.optimizer,
        "lora": job.precision.lora_rank > 0,
        "gradient_overlap": costs.model.gradient_overlap,
        "gather_overlap": costs.model.weight_gather_overlap,
        "train_logits_factor": 2.0 if trains_eagerly(job) else 1.0,
        "online": job.workflow.online,
        "staleness": job.staleness,
    }
    return _floats([values[name] for name in SCALARS])


def _tasks(job: Job, models: tuple[Model, ...]) -> dict[str, Any]:
    tasks = job.workflow.tasks
    roles = list(dict.fromkeys(task.role for task in tasks))
    looks = [_look(model) for model in models]
    trained = {task.role for task in tasks if task.kind == "train"}
    needs = np.zeros((len(tasks), len(tasks)), dtype=np.int32)
    moved = np.zeros((len(tasks), len(tasks)))
    for a, task in enumerate(tasks):
        for need in task.needs:
            source = job.workflow.task(need)
            needs[a, job.workflow.index(need)] = 1
            moved[a, job.workflow.index(need)] = (
                rollout_bytes(job.batch, sequences_per_prompt=task.sequences_per_prompt)
                if source.kind == "generate"
                else score_bytes(job.batch, sequences_per_prompt=source.sequences_per_prompt)
            )
    longest = float(job.batch.max_response_tokens)
    times = (np.arange(NUM_TAIL_SEGMENTS) + 0.5) * longest / NUM_TAIL_SEGMENTS
    size = DTYPE_BYTES[job.precision.dtype]
    return {
        "task_kind": _ints([TASK_KINDS.index(task.kind) for task in tasks]),
        "task_model": _ints([looks.index(_look(task.model)) for task in tasks]),
        "task_role": _ints([roles.index(task.role) for task in tasks]),
        "task_sequences": _ints([task.sequences_per_prompt for task in tasks]),
        "task_trained": _ints([task.role in trained for task in tasks]),
        "task_role_is_actor": _ints([task.role == "actor" for task in tasks]),
        "task_in_flight": _floats([in_flight_tokens(job.batch, task.sequences_per_prompt) for task in tasks]),
        "task_needs": needs,
        "transfer_bytes": moved,
        "transfer_weights": _floats([task.model.num_parameters * size for task in tasks]),
        "tail_times": _floats(times),
        "tail_alive": _floats(survival(job.batch, times)),
    }
