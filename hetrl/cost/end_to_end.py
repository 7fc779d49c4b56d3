"""Published end-to-end results: a row of the table as a workload, its composed time, and the framework's calibration.

The composition is that of the planner (`hetrl.cost.unit`): operators per layer, collectives of measured links. What it
does not contain (launch gaps, scheduler, sampling, exposed communication) is a few non-negative coefficients per
framework and GPU, fitted to other configurations; they are in ``catalog/fitted/end_to_end.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from hetrl.cost.links import LinkCurve, LinkModel
from hetrl.cost.model import CostModel
from hetrl.cost.model_files import BUILTIN, read_links
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.published import Table, device_of
from hetrl.cost.scenarios import Inexpressible, Scenario, scenario_of, value_of
from hetrl.cost.shipped import read_shipped
from hetrl.cost.unit import UnitCosts
from hetrl.cost.work import Array
from hetrl.errors import SpecError
from hetrl.spec.job import Precision
from hetrl.spec.model import Layer, Model
from hetrl.workload.flops import attention_projections, dense_projections, expert_projections

TERMS: Mapping[str, tuple[str, ...]] = {
    "train_step": ("projections", "attention", "weights", "activations", "optimizer", "layer_passes", "micro_batches"),
    "generation": ("decode", "prefill", "communication", "layer_iterations", "iterations", "tokens"),
    "rl_step": ("generation", "training", "fixed"),
}
"""Features of a row's time: seconds, then counts whose coefficients are seconds each."""

DOMAIN_DEVICES = {"GB200": 72, "GB300": 72}
"""GPUs that reach each other by NVLink, where they are more than the `NODE_DEVICES` of a usual node."""
NODE_DEVICES = 8
LINK_BYTES_PER_SECOND = {"B200": 9e11, "B300": 9e11, "GB200": 9e11, "GB300": 9e11, "H100": 4.5e11, "H200": 4.5e11}
"""NVLink of a GPU, one direction, beside the 300 GB/s of the A100 (datasheets)."""
NETWORK_BYTES_PER_SECOND = {
    **dict.fromkeys(("H100", "H200", "B200", "GB200"), 5e10),
    **dict.fromkeys(("B300", "GB300"), 1e11),
}
"""A GPU's share of the network, one direction: 400 and 800 Gbps; else 200 Gbps (as MosaicML's table says)."""
ROUTING_EXPONENT = {"tensorrt-llm": 0.15}
"""How alike the sequences of a static batch route (see `UnitCosts`). With 16 sequences Mixtral's rows take less time
than reading the 7.9 of 8 experts that independent tokens reach; chosen on the rows of A100, those of H100 agree."""
KV_SHARE_OF_MEMORY = 0.9
ENGINE_BYTES = 2e9
MAX_RUNNING = 2048
"""Sequences an engine runs at once at most when the table does not say."""


class Composer:
    """Times of scenarios from operator models and link curves.

    ``coefficients`` calibrate the generation and the training that an RL step is made of.
    """

    def __init__(self, library: OperatorLibrary, coefficients: Mapping[str, tuple[float, ...]]) -> None:
        self._coefficients = coefficients
        self._library = library
        self._unit_costs: dict[tuple[str, float], UnitCosts] = {}
        self._links = {device: LinkModel(curves) for device, curves in _curves_by_device().items()}

    def terms(self, scenario: Scenario) -> Array:
        """Features of a scenario, ordered as `TERMS` of its kind."""
        if not scenario.device.supports(scenario.dtype):
            raise Inexpressible(f"{scenario.device.name} does not compute in {scenario.dtype}")
        if scenario.kind == "rl_step":
            return self._rl(scenario)
        return self._train(scenario) if scenario.kind == "train_step" else self._generation(scenario)

    def _rl(self, each: Scenario) -> Array:
        """Compose generation and training of one step, with the calibrations of vLLM and of Megatron.

        Engines decode the mean length at full concurrency and the rest up to the longest at a tenth of it. Training is
        every mini-batch's step, and two forward passes (old and reference log-probabilities), two thirds of a step's.
        """
        engines = max(1, each.num_devices // each.generate_devices)
        share = max(1, each.batch // engines)
        prompt = each.input_tokens // 4
        engine = replace(
            each, kind="generation", family="vllm", tensor_parallel=each.generate_devices, context_parallel=1
        )
        body = replace(engine, batch=share, input_tokens=prompt, output_tokens=each.input_tokens - prompt)
        tail = replace(engine, batch=max(1, share // 10), output_tokens=max(1, each.output_tokens - each.input_tokens))
        generation = sum(seconds_of(part, self._generation(part), self._coefficients) for part in (body, tail))
        step = replace(each, kind="train_step", family="megatron-bridge", batch=each.train_batch, output_tokens=0)
        training = each.batch / each.train_batch * (5 / 3) * seconds_of(step, self._train(step), self._coefficients)
        return np.array([generation, training, 1.0])

    def _train(self, each: Scenario) -> Array:
        """One optimizer step: micro-batches through one pipeline stage, its bubble, and what travels."""
        model, stages = each.model, each.num_stages
        replicas = each.num_devices // (each.tensor_parallel * stages * each.context_parallel)
        accumulation = max(1.0, each.batch / (replicas * each.micro_batch))
        bubble = 1.0 + (stages - 1) / (accumulation * each.virtual_stages)
        rounds = accumulation * bubble * ((3 if each.recompute else 2) + (0 if each.lora else 1))
        tokens = each.micro_batch * each.input_tokens / each.context_parallel
        kinds, index = model.layer_kinds
        counts = [index.count(kind) / stages for kind in range(len(kinds))]
        projections = sum(
            count * self._projections(each, layer, tokens) for count, layer in zip(counts, kinds, strict=True)
        )
        projections += self._gemm(each, tokens, model.vocab_size / each.tensor_parallel, model.hidden_size) / stages
        attention = sum(count * self._attention(each, layer) for count, layer in zip(counts, kinds, strict=True))
        shard = model.num_parameters / (each.tensor_parallel * stages)
        spread = _expert_parameters(model) * (1.0 - 1.0 / each.expert_parallel) / (each.tensor_parallel * stages)
        weights = 2.0 * (shard - spread)
        gathers = accumulation * ((2 if each.fully_sharded else 1) + 1) if "llm-foundry" in each.family else 2.0
        sent = 0.0 if each.lora else weights * gathers * (replicas - 1) / replicas
        states = 0.0 if each.lora else 16.0 * shard / replicas  # those of adapters are small
        return np.array(
            [
                rounds * projections,
                rounds * attention,
                sent / _bytes_per_second(each, each.num_devices),
                self._activations_seconds(each, tokens, rounds),
                2 * states / each.device.memory_bytes_per_second,
                rounds * model.num_layers / stages,
                accumulation,
            ]
        )

    def _activations_seconds(self, each: Scenario, tokens: float, rounds: float) -> float:
        """Tensor-parallel all-reduces and experts' all-to-alls of one stage; nothing hides them."""
        hidden, layers = 2.0 * each.model.hidden_size * tokens, each.model.num_layers / each.num_stages
        seconds = 0.0
        if each.tensor_parallel > 1:
            once = self._all_reduce(each.device.name, np.array([hidden]), each.tensor_parallel).item()
            seconds += 2 * layers * once
        if each.expert_parallel > 1 and each.model.layers[-1].num_experts:
            routed = hidden * each.model.layers[-1].experts_per_token * (1.0 - 1.0 / each.expert_parallel)
            seconds += 2 * layers * routed / _bytes_per_second(each, each.tensor_parallel * each.expert_parallel)
        return seconds * rounds

    def _gemm(self, each: Scenario, m: float, n: float, k: float) -> float:
        operator = self._library.for_device(each.device, "gemm", each.dtype)
        return operator.predict(m=max(m, 1.0), n=n, k=k).seconds.item()

    def _projections(self, each: Scenario, layer: Layer, tokens: float) -> float:
        """All matrix products of a layer on one rank; experts are spread, each with the tokens of all its ranks."""
        hidden, degree = each.model.hidden_size, each.tensor_parallel
        seconds = 0.0
        for projection in (*attention_projections(hidden, layer), *dense_projections(hidden, layer)):
            seconds += self._gemm(each, tokens, *projection.sharded(degree))
        if layer.num_experts:
            own = max(1.0, layer.num_experts / each.expert_parallel)
            per_expert = tokens * layer.experts_per_token / own
            for projection in expert_projections(hidden, layer):
                seconds += own * self._gemm(each, per_expert, projection.n, projection.k)
        return seconds

    def _attention(self, each: Scenario, layer: Layer) -> float:
        operator = self._library.for_device(each.device, "attention_prefill", "bf16")
        seconds = operator.predict(
            batch=each.micro_batch,
            heads=max(1, layer.num_heads // each.tensor_parallel),
            kv_heads=max(1, layer.num_kv_heads // each.tensor_parallel),
            head_dim=layer.head_dim,
            seq_len=each.input_tokens,
        ).seconds.item()
        return seconds / each.context_parallel

    def _generation(self, each: Scenario) -> Array:
        """Waves of as many sequences as the KV pool holds, each prefilled and decoded together.

        Without a batch every request is queued: the pool is always full, and the time is that of one pool.
        """
        running = self._concurrency(each)
        if running < 1:
            raise Inexpressible("generation: one sequence does not fit in memory")
        if each.batch == 0:
            return self._wave(each, min(running, MAX_RUNNING)) / min(running, MAX_RUNNING)
        total = np.zeros(len(TERMS["generation"]))
        left = each.batch
        while left > 0:
            total += self._wave(each, min(running, left))
            left -= running
        return total

    def _concurrency(self, each: Scenario) -> int:
        model = each.model
        element = 1.0 if each.dtype == "fp8" else 2.0
        memory = KV_SHARE_OF_MEMORY * each.tensor_parallel * each.device.memory_bytes - ENGINE_BYTES
        free = memory - element * model.num_parameters
        replicated = max(1.0, each.tensor_parallel / max(1, model.layers[0].num_kv_heads))
        per_token = model.kv_bytes_per_token_bf16 * replicated * element / 2
        in_flight = each.input_tokens + each.output_tokens / (1 if each.batch else 2)
        return int(free // (per_token * in_flight))

    def _costs(self, each: Scenario) -> UnitCosts:
        key = (each.dtype, ROUTING_EXPONENT.get(each.family, 1.0))
        if key not in self._unit_costs:
            model, precision = CostModel(library=self._library), Precision(dtype=each.dtype)
            self._unit_costs[key] = UnitCosts(model, precision, routing_exponent=key[1])
        return self._unit_costs[key]

    def _wave(self, each: Scenario, batch: int) -> Array:
        costs, model, degree = self._costs(each), each.model, each.tensor_parallel
        context = np.array([each.input_tokens + each.output_tokens / 2])
        active = np.array([float(batch)])
        decode = costs.decode_head_seconds(each.device, model, degree, active).item()
        for run in costs.runs(model, 0, model.num_layers):
            decode += (
                run.count * costs.decode_layer_seconds(each.device, model, degree, run.kind, active, context).item()
            )
        chunk = max(1, min(batch, 8192 // each.input_tokens))
        prefill = (batch / chunk) * costs.stage_forward_seconds(
            each.device, model, degree, 0, model.num_layers, chunk, each.input_tokens, all_logits=False
        )
        communication = 0.0
        if degree > 1:
            hidden = 2.0 * model.hidden_size
            reduces = self._all_reduce(
                each.device.name, np.array([hidden * batch, hidden * chunk * each.input_tokens]), degree
            )
            steps = np.array([each.output_tokens, batch / chunk])
            communication = float(2 * model.num_layers * (reduces * steps).sum())
        return np.array(
            [
                decode * each.output_tokens,
                prefill,
                communication,
                each.output_tokens * model.num_layers,
                each.output_tokens,
                batch * each.output_tokens,
            ]
        )

    def _all_reduce(self, device: str, sizes: Array, degree: int) -> Array:
        """Seconds by the fastest implementation at every size, as engines choose; NVLink figures without a curve."""
        model = self._links.get(device) or LinkModel(latency_seconds=1e-6, bytes_per_second=3e11)
        choices: list[str | None] = [*sorted({curve.implementation for curve in model.curves})] or [None]
        times = [model.collective_seconds("all_reduce", sizes, degree, implementation=name).seconds for name in choices]
        return np.asarray(np.min(times, axis=0))


def _expert_parameters(model: Model) -> float:
    """Parameters of all routed experts."""
    return float(
        sum(
            layer.num_experts * projection.n * projection.k
            for layer in model.layers
            for projection in expert_projections(model.hidden_size, layer)
        )
    )


def _bytes_per_second(each: Scenario, num_devices: int) -> float:
    """Bandwidth of a device among so many: its links as long as they reach all, else its share of the network."""
    if num_devices <= DOMAIN_DEVICES.get(each.device.name, NODE_DEVICES):
        return LINK_BYTES_PER_SECOND.get(each.device.name, 3e11)
    return NETWORK_BYTES_PER_SECOND.get(each.device.name, 2.5e10)


@cache
def _curves_by_device() -> dict[str, list[LinkCurve]]:
    found: dict[str, list[LinkCurve]] = {}
    for curve in read_links(BUILTIN):
        if "_sxm_intra" in curve.link or curve.link.startswith("pcie"):
            found.setdefault(device_of(curve.gpu).name, []).append(curve)
    return found


def predict_rows(
    table: Table, library: OperatorLibrary, coefficients: Mapping[str, tuple[float, ...]] | None = None
) -> tuple[list[float | None], list[str]]:
    """Predict rows of an end-to-end table in their own unit.

    Returns
    -------
    values
        None where a row cannot be expressed.
    reasons
        Why, empty where it can.
    """
    known = coefficients if coefficients is not None else builtin_coefficients()
    composer = Composer(library, known)
    values: list[float | None] = []
    reasons = []
    for row in range(len(table)):
        cells = {name: column[row] for name, column in table.columns.items()}
        try:
            scenario = scenario_of(cells)
            values.append(value_of(scenario, seconds_of(scenario, composer.terms(scenario), known)))
            reasons.append("")
        except Inexpressible as reason:
            values.append(None)
            reasons.append(str(reason))
        except SpecError as error:
            values.append(None)
            reasons.append(str(error))
    return values, reasons


def seconds_of(scenario: Scenario, terms: Array, coefficients: Mapping[str, tuple[float, ...]]) -> float:
    """Calibrated seconds: coefficients of the framework on this GPU, else of the framework, else of the kind."""
    keys = (scenario.group, f"{scenario.kind}|{scenario.family}", scenario.kind)
    chosen = next((coefficients[key] for key in keys if key in coefficients), None)
    if chosen is None:
        raise Inexpressible(f"{scenario.kind}: no calibration")
    return float(terms @ np.array(chosen))


def builtin_coefficients() -> dict[str, tuple[float, ...]]:
    """Calibrations shipped with hetrl."""
    return {key: tuple(values) for key, values in read_shipped("end_to_end.yaml")["coefficients"].items()}
