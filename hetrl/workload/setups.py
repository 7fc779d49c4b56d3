"""Memory of a setup as users of training systems describe it: degrees, sharding, offload, engine utilization.

A `Setup` is coarser than a plan: one trained model (and further ones beside it), one engine layout, equal devices. Its
purpose is a verdict before anything is searched or rented: fits, tight, or does not fit, phase by phase, with the
dominant term and changes that help. The formulas are those of `hetrl.workload.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetrl.spec.devices import DTYPE_BYTES, DeviceType
from hetrl.spec.job import Precision
from hetrl.spec.model import Layer, Model
from hetrl.spec.rules import split_layers
from hetrl.units import format_bytes
from hetrl.workload.flops import lora_parameters
from hetrl.workload.memory import (
    allowances,
    kv_bytes_per_token,
    logits_bytes,
    optimizer_workspace_bytes,
    stage_activation_bytes,
    stage_parameters,
    train_state_bytes_per_parameter,
)

TIGHT_FRACTION = 0.95  # more than this share of a limit is called tight
ENGINE_UTILIZATION = 0.92  # share of the device an engine takes by default (vLLM)
PREFILL_TOKENS = 8192  # tokens an engine batches in one prefill step (vLLM's default)
KV_BLOCK_TOKENS = 16
OFFLOADABLE = ("weights", "gradients", "optimizer")
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does_not_fit"
# Bytes of one token of a finished response on its way to training: ids (8) and three fp32 values (log-probabilities
# of policy and reference, advantage), a mask (4): what rollout buffers hold.
ROLLOUT_BYTES_PER_TOKEN = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSetup:
    """How the trained models are spread and what is offloaded.

    Parameters
    ----------
    num_devices
        Devices that train.
    tensor, pipeline, expert
        Parallel degrees; the rest are data replicas.
    layers_per_stage
        Uneven split; empty for the most even one.
    sharding
        ``none``, ``zero1`` (optimizer states over the replicas), ``zero2`` (also gradients) or ``fsdp`` (everything).
    offload
        Which of `OFFLOADABLE` sit in host RAM outside their own moment of use.
    host_optimizer
        The optimizer step itself runs on the host: its states never reach the device.
    micro_batch_size, tokens
        Sequences of a micro-batch and tokens of the longest one.
    recompute, precision
        As in a job; LoRA by ``precision.lora_rank``.
    eager
        PyTorch without fused operators, as on a CPU.
    staging_copies
        Copies of offloaded state that the host holds: 2 where pinned staging buffers double it.
    load_copies_per_rank
        Whole copies of the weights each rank reads into host RAM when it starts.
    """

    num_devices: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    layers_per_stage: tuple[int, ...] = ()
    sharding: str = "none"
    offload: frozenset[str] = frozenset()
    host_optimizer: bool = False
    micro_batch_size: int = 1
    tokens: int = 2048
    recompute: bool = True
    eager: bool = False
    precision: Precision = field(default_factory=Precision)
    staging_copies: int = 1
    load_copies_per_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """An inference engine replica.

    Parameters
    ----------
    tensor, pipeline, layers_per_stage
        Its layout.
    utilization
        Share of the device memory it may take in all.
    max_tokens
        Longest sequence it must be able to hold.
    sequences
        Sequences of that length it must hold at once.
    weight_bytes_per_parameter
        2 for bf16; less for quantised checkpoints.
    sleeps
        It frees its memory outside generation, keeping a copy of the weights in host RAM.
    """

    tensor: int = 1
    pipeline: int = 1
    layers_per_stage: tuple[int, ...] = ()
    utilization: float = ENGINE_UTILIZATION
    max_tokens: int = 2048
    sequences: int = 1
    kv_bytes_per_element: int = 2
    weight_bytes_per_parameter: float = 2.0
    sleeps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Devices, models and how they are used.

    Parameters
    ----------
    model
        The policy.
    device
        Device type; where devices differ, the smallest.
    devices_per_node, host_ram_bytes
        Shape of a node; host RAM None if unknown (not checked).
    critic
        A second trained model with the same layout.
    frozen
        Models that only score, kept on the training devices unless ``frozen_offloaded``.
    train, engine
        None if that side does not exist.
    colocated
        Whether engine and training share devices.
    responses_held, response_tokens
        Finished responses that wait for training, and their length.
    """

    model: Model
    device: DeviceType
    devices_per_node: int = 8
    host_ram_bytes: float | None = None
    host_other_bytes: float = 0.0
    critic: Model | None = None
    frozen: tuple[Model, ...] = ()
    frozen_offloaded: bool = True
    train: TrainSetup | None = None
    engine: EngineSetup | None = None
    colocated: bool = True
    responses_held: int = 0
    response_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SetupMemory:
    """What a setup needs.

    Parameters
    ----------
    phases
        phase -> term -> bytes on the fullest device.
    limit_bytes
        Usable device memory.
    host
        term -> bytes on the fullest node.
    host_limit_bytes
        None if unknown.
    engine_reserved_bytes
        What the engine reserves (utilization x memory), whatever it needs.
    kv_tokens
        Tokens that its KV pool holds.
    """

    phases: Mapping[str, Mapping[str, float]]
    limit_bytes: float
    host: Mapping[str, float] = field(default_factory=dict)
    host_limit_bytes: float | None = None
    engine_reserved_bytes: float = 0.0
    kv_tokens: int = 0
    problems: tuple[str, ...] = ()

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak_bytes(self) -> float:
        """Bytes of the peak phase."""
        return sum(self.phases[self.peak_phase].values())

    @property
    def dominant_term(self) -> str:
        """The largest term of the peak phase."""
        terms = self.phases[self.peak_phase]
        return max(terms, key=lambda term: terms[term])

    @property
    def host_bytes(self) -> float:
        """Bytes on the fullest node."""
        return sum(self.host.values())

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` or ``does_not_fit``, the worse of device and host."""
        shares = [self.peak_bytes / self.limit_bytes]
        if self.host_limit_bytes is not None:
            shares.append(self.host_bytes / self.host_limit_bytes)
        if self.problems or max(shares) > 1:
            return DOES_NOT_FIT
        return TIGHT if max(shares) > TIGHT_FRACTION else FITS


def expert_parameters(model: Model, first_layer: int, num_layers: int) -> int:
    """Parameters of all routed experts in some layers."""
    layers = model.layers[first_layer : first_layer + num_layers]
    return sum(layer.num_experts * layer.expert_parameters for layer in layers)


def engine_activation_bytes(model: Model, tensor: int, tokens: int = PREFILL_TOKENS) -> float:
    """Peak of a forward pass that keeps nothing: input and output of the widest step of a layer."""

    def widest(layer: Layer) -> float:
        attention = (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim + layer.num_heads * layer.v_head_dim
        width = layer.intermediate_size + layer.shared_intermediate_size
        width += layer.experts_per_token * layer.moe_intermediate_size
        return max(attention, (3 if layer.gated else 2) * width) / tensor

    return 2.0 * tokens * (2 * model.hidden_size + max(widest(layer) for layer in dict.fromkeys(model.layers)))


def _stages(model: Model, pipeline: int, layers_per_stage: tuple[int, ...]) -> list[tuple[int, int]]:
    split = layers_per_stage or split_layers(model.num_layers, pipeline)
    starts = [sum(split[:index]) for index in range(len(split))]
    return list(zip(starts, split, strict=True))


def train_terms(model: Model, train: TrainSetup, vendor: str) -> tuple[dict[str, dict[str, float]], float, float]:
    """Return moment -> term -> bytes of the fullest stage, and bytes offloaded per rank (state, all weights).

    Moments are ``forward_backward`` and ``optimizer_step``.
    """
    each = train_state_bytes_per_parameter(train.precision)
    element = DTYPE_BYTES[train.precision.dtype]
    replicas = max(1, train.num_devices // (train.tensor * train.pipeline))
    allowed = allowances(vendor)
    worst: dict[str, dict[str, float]] = {}
    offloaded = 0.0
    for number, (first, count) in enumerate(_stages(model, train.pipeline, train.layers_per_stage)):
        experts = expert_parameters(model, first, count)
        dense = stage_parameters(model, first, count) - experts
        expert_ranks = train.expert if train.expert > 1 else train.tensor
        held = dense / train.tensor + experts / expert_ranks
        expert_replicas = max(1, replicas * train.tensor // expert_ranks)
        trained, frozen = held, 0.0
        if train.precision.lora_rank > 0:
            trained = lora_parameters(model, train.precision.lora_rank) * count / model.num_layers / train.tensor
            frozen = held * each.weights
        optimizer_share = 1.0
        if train.sharding != "none":
            share_dense = dense / train.tensor / held
            optimizer_share = share_dense / replicas + (1 - share_dense) / expert_replicas
        gradient_share = optimizer_share if train.sharding in ("zero2", "fsdp") else 1.0
        weight_share = optimizer_share if train.sharding == "fsdp" else 1.0
        weights = (frozen + trained * each.weights) * weight_share
        gradients = trained * each.gradients * gradient_share
        optimizer = trained * each.optimizer * optimizer_share
        gathered = 0.0
        if train.sharding == "fsdp" and replicas > 1:
            gathered = (
                2 * max(layer.num_parameters for layer in model.layers[first : first + count]) * element / train.tensor
            )
        in_flight = train.pipeline - number
        last = first + count == model.num_layers
        activations = stage_activation_bytes(
            model,
            first_layer=first,
            num_layers=count,
            tensor_parallel=train.tensor,
            micro_batch_size=train.micro_batch_size,
            tokens=train.tokens,
            micro_batches_in_flight=in_flight,
            recompute=train.recompute,
            bytes_per_element=element,
            eager=train.eager,
        )
        logits = 0.0
        if last and model.head == "lm":
            logits = logits_bytes(model, train.micro_batch_size * train.tokens, train.tensor, bytes_per_element=element)
            logits *= 2 if train.eager else 1
        fixed = {"process": float(allowed.process_bytes)}
        if train.num_devices > 1:
            fixed["communication"] = float(allowed.communication_bytes)
        if train.eager and not train.host_optimizer:  # the allocator keeps it between steps
            fixed["optimizer workspace"] = optimizer_workspace_bytes(model, element)
        away = "optimizer" in train.offload or train.host_optimizer
        moments = {
            "forward_backward": {
                "weights": weights + gathered,
                "gradients": gradients,
                "optimizer": 0.0 if away else optimizer,
                "activations": (activations - logits) * (1 + allowed.fragmentation),
                "logits": logits * (1 + allowed.fragmentation),
                **fixed,
            },
            "optimizer_step": {
                "weights": weights,
                "gradients": gradients,
                "optimizer": 0.0 if train.host_optimizer else optimizer,
                **fixed,
            },
        }
        for moment, terms in moments.items():
            if sum(terms.values()) > sum(worst.get(moment, {"": -1.0}).values()):
                worst[moment] = terms
        state = optimizer if away else 0.0
        if train.host_optimizer:
            state += trained * each.gradients * optimizer_share  # the host step reads its share
        elif "gradients" in train.offload:
            state += gradients
        if "weights" in train.offload:
            state += weights
        offloaded = max(offloaded, state)
    whole = model.num_parameters * each.weights
    return worst, offloaded, float(whole)


def resident_between(terms: Mapping[str, float], train: TrainSetup) -> float:
    """Bytes a trainer keeps on the device while others run: what is not offloaded; gradients are freed."""
    kept = 0.0 if "weights" in train.offload else terms["weights"]
    kept += 0.0 if ("optimizer" in train.offload or train.host_optimizer) else terms["optimizer"]
    return kept + terms["process"]


def engine_terms(setup: Setup, engine: EngineSetup) -> tuple[dict[str, float], float, int]:
    """Return term -> bytes of the fullest engine rank without KV pool, bytes its pool needs, and tokens its pool holds.

    The pool is what ``utilization`` leaves; it must hold ``sequences`` of ``max_tokens``.
    """
    worst: dict[str, float] = {}
    tokens_held = None
    need = 0.0
    budget = engine.utilization * setup.device.memory_bytes
    for first, count in _stages(setup.model, engine.pipeline, engine.layers_per_stage):
        weights = stage_parameters(setup.model, first, count) * engine.weight_bytes_per_parameter / engine.tensor
        terms = {"weights": weights, "activations": engine_activation_bytes(setup.model, engine.tensor)}
        per_token = kv_bytes_per_token(
            setup.model,
            first_layer=first,
            num_layers=count,
            tensor_parallel=engine.tensor,
            bytes_per_element=engine.kv_bytes_per_element,
        )
        room = max(0.0, budget - sum(terms.values()))
        tokens = kv_tokens(room, per_token)
        if tokens_held is None or tokens < tokens_held:
            tokens_held = tokens
        pool = per_token * engine.max_tokens * engine.sequences
        if sum(terms.values()) + pool > sum(worst.values()) + need:
            worst, need = terms, pool
    return worst, need, tokens_held or 0


def kv_tokens(pool_bytes: float, bytes_per_token: float, block_tokens: int = KV_BLOCK_TOKENS) -> int:
    """Return the tokens that a KV pool holds, in whole blocks.

    >>> kv_tokens(18.7834 * 2**30, 114_688)
    175856
    """
    return int(pool_bytes / (bytes_per_token * block_tokens)) * block_tokens


def setup_memory(setup: Setup) -> SetupMemory:
    """Return what a setup needs on its fullest device and node, phase by phase."""
    phases: dict[str, dict[str, float]] = {}
    host: dict[str, float] = {}
    problems: list[str] = []
    vendor = setup.device.vendor
    kept = 0.0
    if setup.train is not None:
        moments, kept = _training(setup, setup.train, host)
        phases.update(moments)
    reserved, held = 0.0, 0
    if setup.engine is not None:
        terms, need, held = engine_terms(setup, setup.engine)
        reserved = setup.engine.utilization * setup.device.memory_bytes
        used = sum(terms.values()) + need
        if used > reserved:
            problems.append(
                f"the engine needs {format_bytes(used)} "
                f"(weights {format_bytes(terms['weights'])}, KV {format_bytes(need)}), "
                f"utilization {setup.engine.utilization:g} gives {format_bytes(reserved)}"
            )
        generate = {
            **terms,
            "kv_cache": max(reserved - sum(terms.values()), need),
            "process": float(allowances(vendor).process_bytes),
        }
        if setup.colocated and setup.train is not None:
            generate["trainer (idle)"] = kept
            generate["process"] = 0.0 if kept else generate["process"]
        phases["generate"] = generate
        if setup.colocated and setup.train is not None and not setup.engine.sleeps:
            for moment in ("forward_backward", "optimizer_step"):
                phases[moment] = {**phases[moment], "engine (idle)": reserved}
        if setup.engine.sleeps and setup.colocated:
            engines = setup.devices_per_node / setup.engine.tensor / setup.engine.pipeline
            copies = setup.model.num_parameters * setup.engine.weight_bytes_per_parameter * max(engines, 0.0)
            host["sleeping engines"] = copies
    if setup.host_other_bytes:
        host["other"] = setup.host_other_bytes
    return SetupMemory(
        phases=phases,
        limit_bytes=float(setup.device.memory_bytes),
        host=host,
        host_limit_bytes=setup.host_ram_bytes,
        engine_reserved_bytes=reserved,
        kv_tokens=held,
        problems=tuple(problems),
    )


def _training(setup: Setup, train: TrainSetup, host: dict[str, float]) -> tuple[dict[str, dict[str, float]], float]:
    """Return the training moments with critic, frozen models and rollouts added, and what stays between phases."""
    trained = [setup.model] + ([setup.critic] if setup.critic is not None else [])
    own = [train_terms(model, train, setup.device.vendor) for model in trained]
    per_node = min(setup.devices_per_node, train.num_devices)
    keeps = [resident_between(moments["optimizer_step"], train) for moments, _, _ in own]
    phases: dict[str, dict[str, float]] = {}
    for moment in ("forward_backward", "optimizer_step"):
        index = max(range(len(own)), key=lambda i: sum(own[i][0][moment].values()))
        terms = dict(own[index][0][moment])
        others = sum(keep for i, keep in enumerate(keeps) if i != index) - (len(own) - 1) * terms["process"]
        if others > 0:
            terms["other trained models (idle)"] = others
        phases[moment] = terms
    element = DTYPE_BYTES[train.precision.dtype]
    for model in setup.frozen:
        share = (
            model.num_parameters
            * element
            / (train.num_devices if train.sharding == "fsdp" else train.tensor * train.pipeline)
        )
        if setup.frozen_offloaded:
            host["frozen models"] = host.get("frozen models", 0.0) + share * per_node
        else:
            for terms in phases.values():
                terms["frozen models"] = terms.get("frozen models", 0.0) + share
            keeps.append(share)
    if setup.responses_held:
        replicas = max(1, train.num_devices // (train.tensor * train.pipeline))
        buffers = setup.responses_held * setup.response_tokens * ROLLOUT_BYTES_PER_TOKEN
        phases["forward_backward"]["rollouts"] = buffers / replicas
        host["rollouts"] = float(buffers)  # the process that collects them holds all
    offloaded = sum(state for _, state, _ in own) * per_node * train.staging_copies
    if offloaded:
        host["offloaded state"] = offloaded
    if train.load_copies_per_rank:
        host["loading"] = sum(whole for _, _, whole in own) * per_node * train.load_copies_per_rank
    host["processes"] = float(allowances(setup.device.vendor).host_process_bytes * per_node)
    process = phases["optimizer_step"]["process"]
    return phases, sum(keeps) - (len(trained) - 1) * process
