"""The questions that a case may ask, each answered through hetrl's public API.

An ask takes the case's ``given`` mapping and returns an `Answer`. docs/cases.md describes every ask for people who
write cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetrl.errors import Problem, SpecError
from hetrl.spec import environment_rules, fleet_rules, rules, topo_text
from hetrl.spec.device_names import find_device
from hetrl.spec.devices import DeviceType
from hetrl.spec.load import job_from_values, load_job
from hetrl.spec.load_devices import read_device_types
from hetrl.spec.load_topology import read_topology
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model
from hetrl.spec.section import Report
from hetrl.spec.topology import Topology
from hetrl.units import GIB

Given = Mapping[str, Any]


@dataclass
class Answer:
    """What hetrl says: a verdict, the violated rules, values by name, and every message."""

    verdict: str = "accept"
    rules: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def of(
        cls,
        problems: list[Problem],
        values: dict[str, Any] | None = None,
        text: str = "",
        remarks: tuple[str, ...] = (),
    ) -> Answer:
        """Build an answer: rejected if there is a problem whose rule is not only a remark."""
        serious = [problem for problem in problems if problem.rule not in remarks]
        verdict = "reject" if serious else ("warn" if problems else "accept")
        words = "\n".join([*(str(problem) for problem in problems), text])
        return cls(verdict=verdict, rules=tuple(problem.rule for problem in problems), values=values or {}, text=words)


def model_of(given: Given, key: str = "model") -> Model:
    """Return the model a case names or describes."""
    head = given.get("head")
    return find_model(given[key], path=key, head=head)


def device_of(value: Any) -> DeviceType:
    """Return a device by name, or with other memory: {name, memory_gib}."""
    if isinstance(value, dict):
        device, _ = find_device(value["name"])
        from dataclasses import replace

        return replace(device, memory_bytes=int(value["memory_gib"] * 2**30))
    return find_device(value)[0]


def topology_of(given: Given) -> Topology:
    """Return the fleet of ``nodes`` (as in a job file) or of plain ``node_sizes``."""
    report = Report()
    values = (
        {"nodes": given["nodes"]}
        if "nodes" in given
        else {
            "nodes": [
                {"id": f"node-{i}", "gpus": size, "type": given.get("device", "H100")}
                for i, size in enumerate(given["node_sizes"])
            ]
        }
    )
    described = read_device_types(given.get("device_types"), report)
    topology = read_topology(values, described, report)
    report.raise_if_any()
    assert topology is not None
    return topology


def tensor_parallel(given: Given) -> Answer:
    """Is a tensor degree allowed for a model?"""
    model = model_of(given)
    quantized = given.get("weights") == "checkpoint"
    options: dict[str, Any] = {
        "quantized": quantized,
        "expert_parallel": bool(given.get("expert_parallel", False)),
        "kv_replication": bool(given.get("kv_replication", True)),
    }
    degrees = given["tensor_parallel"] if isinstance(given["tensor_parallel"], list) else [given["tensor_parallel"]]
    limit = int(given.get("num_devices", 0))
    problems = [
        problem
        for degree in degrees
        for problem in rules.tensor_parallel_problems(model, degree, num_devices=limit, **options)
    ]
    by_heads = [
        d
        for d in range(1, model.num_heads + 1)
        if model.num_heads % d == 0 and all(rules.kv_heads_allow(kv, d) for kv in model.kv_head_counts)
    ]
    values = {
        "valid_degrees": list(rules.valid_tensor_degrees(model, limit, **options)),
        "valid_by_heads": [d for d in by_heads if not limit or d <= limit],
        "rejected": [degree for degree in degrees if degree not in rules.valid_tensor_degrees(model, **options)],
    }
    return Answer.of(problems, values)


def vocab_padding(given: Given) -> Answer:
    """How is a vocabulary padded and divided?"""
    vocab = given["vocab_size"] if "vocab_size" in given else model_of(given).vocab_size
    degree = given["tensor_parallel"]
    how = {
        "total_multiple": given.get("total_multiple", rules.VOCAB_MULTIPLE),
        "rows_multiple": given.get("rows_multiple", 1),
    }
    padded = rules.padded_vocab(vocab, degree, **how)
    values = {
        "padded_vocab": padded,
        "rows_per_rank": rules.vocab_rows_per_rank(vocab, degree, **how),
        "least_padded_vocab": rules.padded_vocab(vocab, degree, total_multiple=1),
        "exported_vocab": vocab,
    }
    return Answer.of([], values)


def pipeline(given: Given) -> Answer:
    """Is a layer split allowed?"""
    layers = given["num_layers"] if "num_layers" in given else model_of(given).num_layers
    if "first" in given or "last" in given:
        stages, problems = rules.ends_split(layers, given["num_stages"], given.get("first", 0), given.get("last", 0))
        return Answer.of(problems, {"stages": list(stages)})
    stages = tuple(given.get("stages", ()))
    problems = rules.pipeline_problems(
        layers, stages, num_stages=given.get("num_stages", 0), even=bool(given.get("even", False))
    )
    return Answer.of(problems, {"stages": list(stages or rules.split_layers(layers, given["num_stages"]))})


def layout(given: Given) -> Answer:
    """Does a whole layout (tensor, pipeline, context, expert, rollout) fit a model and a fleet of equal nodes?"""
    model = model_of(given)
    devices, per_node = given["num_devices"], given["devices_per_node"]
    tensor, context, expert = given.get("tensor", 1), given.get("context", 1), given.get("expert", 1)
    stages, problems = rules.ends_split(
        model.num_layers, given.get("pipeline", 1), given.get("first", 0), given.get("last", 0)
    )
    problems += rules.tensor_parallel_problems(model, tensor, num_devices=devices)
    ranks = tensor * len(stages) * context
    data = devices // ranks
    problems += fleet_rules.world_problems(devices, tensor_parallel=tensor * context, pipeline_parallel=len(stages))
    problems += rules.expert_parallel_problems(model, expert, group_size=tensor * context * data)
    text = ""
    values = {"data_parallel": data, "stages": list(stages)}
    if "rollout_tensor" in given:
        rollout = given["rollout_tensor"]
        problems += rules.tensor_parallel_problems(model, rollout, num_devices=devices)
        topology = topology_of(
            {"node_sizes": [per_node] * (devices // per_node), "device": given.get("device", "H100")}
        )
        across = fleet_rules.tensor_group_problems(topology, range(rollout))
        values["rollout_nodes"] = -(-rollout // per_node)
        values["rollout_flags"] = [problem.rule for problem in across]
        text = "\n".join(map(str, across))
    return Answer.of(problems, values, text)


def batch(given: Given) -> Answer:
    """Can a batch be shared out?"""
    responses = given.get("responses_per_prompt", 1)
    sequences = given["num_prompts"] * responses
    problems = rules.batch_problems(
        sequences,
        given["num_shares"],
        micro_batch_size=given.get("micro_batch_size", 1),
        group_size=responses if given.get("whole_groups", False) else 1,
        per_replica=given.get("per_share", 1),
        uneven=bool(given.get("uneven", False)),
    )
    return Answer.of(problems, {"num_sequences": sequences})


def fleet(given: Given) -> Answer:
    """Can a request be met by the nodes that exist?"""
    topology = topology_of(given)
    problems: list[Problem] = []
    values: dict[str, Any] = {
        "num_devices": topology.num_devices,
        "domain_sizes": list(fleet_rules.tensor_domain_sizes(topology)),
    }
    if "request" in given:
        problems += fleet_rules.request_problems(
            topology, given["request"], equal_nodes=bool(given.get("equal_nodes", False))
        )
    if "tensor_parallel" in given:
        groups = fleet_rules.tensor_groups(topology, given["tensor_parallel"])
        values["tensor_groups"] = [list(group) for group in groups]
        values["num_tensor_groups"] = len(groups)
    if "devices" in given:
        check = (
            fleet_rules.tensor_group_problems
            if given.get("as", "tensor_group") == "tensor_group"
            else fleet_rules.collective_problems
        )
        problems += check(topology, given["devices"])
    if "expected_nodes" in given:
        problems += fleet_rules.missing_nodes(given["expected_nodes"], [node.id for node in topology.nodes])
    if "pools" in given:
        problems += fleet_rules.pool_problems(
            topology.num_devices, given["pools"], colocated=bool(given.get("colocated", False))
        )
        values["pools"] = {
            name: list(ids) for name, ids in fleet_rules.pool_devices(topology.num_devices, given["pools"]).items()
        }
    return Answer.of(problems, values)


def world(given: Given) -> Answer:
    """Do replicas x stages x tensor ranks fit a number of devices?"""
    devices, replicas = given["num_devices"], given.get("replicas", 0)
    tensor = given.get("tensor_parallel", "auto")
    if tensor == "auto":
        tensor = max(devices // max(replicas, 1), 1)
    stages = given.get("pipeline", 1)
    problems = fleet_rules.world_problems(devices, tensor_parallel=tensor, pipeline_parallel=stages, replicas=replicas)
    values = {
        "tensor_parallel": tensor,
        "replicas": replicas or devices // (tensor * stages),
        "devices_per_replica": tensor * stages,
    }
    return Answer.of(problems, values, remarks=("DEVICES_IDLE",))


def resources(given: Given) -> Answer:
    """Are enough devices free, and is there enough host RAM?"""
    problems: list[Problem] = []
    if "wanted" in given:
        problems += environment_rules.free_device_problems(given["wanted"], given["total"], given.get("held", {}))
    if "host_ram_needed_gib" in given:
        problems += environment_rules.host_ram_problems(given["host_ram_needed_gib"] * GIB, given["host_ram_gib"] * GIB)
    return Answer.of(problems)


def environment(given: Given) -> Answer:
    """Is the environment of a worker right?"""
    problems = environment_rules.environment_problems(
        given.get("variables", {}), engine_sleeps=bool(given.get("engine_sleeps", True))
    )
    values: dict[str, Any] = {}
    if "interfaces" in given:
        values["interface"], more = environment_rules.routable_interface(given["interfaces"], given.get("peer", ""))
        problems += more
    return Answer.of(problems, values)


def device(given: Given) -> Answer:
    """What does a name mean?"""
    memory = given["memory_mib"] * 2**20 if "memory_mib" in given else None
    names = given["names"] if "names" in given else [given["name"]]
    found = [find_device(name, memory_bytes=memory) for name in names]
    one = found[0][0]
    values = {
        "name": one.name,
        "names": [device.name for device, _ in found],
        "num_names": len({device.name for device, _ in found}),
        "memory_gib": one.memory_bytes / 2**30,
        "memory_gb": one.memory_bytes / 1e9,
        "memory_mib": one.memory_bytes / 2**20,
        "vendor": one.vendor,
        "bf16_tflops": one.flops_per_second.get("bf16", 0) / 1e12,
        "peer_to_peer": one.peer_to_peer,
        "can_train": one.can_train,
    }
    warnings = [warning for _, warning in found if warning]
    return Answer(verdict="warn" if warnings else "accept", values=values, text="\n".join(warnings))


def device_list(given: Given) -> Answer:
    """Which devices does ``nvidia-smi -L`` list?"""
    listed = topo_text.parse_device_list(given["text"])
    values = {
        "num_devices": len(listed),
        "names": [each.type.name for each in listed],
        "memory_gb": [round(each.type.memory_bytes / 1e9, 3) for each in listed],
        "uuids": [each.uuid for each in listed],
    }
    return Answer.of([], values)


def visible_devices(given: Given) -> Answer:
    """What does a visible-devices variable name?"""
    return Answer.of([], {"identifiers": list(topo_text.parse_visible_devices(given["text"]))})


def topology_text(given: Given) -> Answer:
    """What does ``nvidia-smi topo -m`` say about a node?"""
    matrix = topo_text.parse_topo(given["text"])
    kind = device_of(given["device"])
    pcie = given.get("pcie", "PCIe-Gen4")
    slowest = matrix.slowest_link(kind, pcie)
    values = {
        "num_gpus": len(matrix.gpus),
        "link": slowest.kind,
        "gigabytes_per_second": slowest.bytes_per_second / 1e9,
        "cpu_ranges": [[list(pair) for pair in ranges] for ranges in matrix.cpu_ranges],
        "nics": list(matrix.nics),
        "nvlink_groups": [list(group) for group in matrix.nvlink_groups],
    }
    return Answer.of([], values)


def dtype(given: Given) -> Answer:
    """Does a device compute in a dtype?"""
    return Answer.of(
        fleet_rules.dtype_problems(device_of(given["device"]), given["dtype"], use=given.get("use", "train"))
    )


def model(given: Given) -> Answer:
    """What does a model config mean?"""
    made = model_of(given)
    kinds = list(dict.fromkeys(made.layers))
    first = made.layers[0]
    values = {
        "num_parameters": made.num_parameters,
        "num_active_parameters": made.num_active_parameters,
        "kv_bytes_per_token": made.kv_bytes_per_token_bf16,
        "num_layers": made.num_layers,
        "vocab_size": made.vocab_size,
        "num_heads": made.num_heads,
        "query_rows": first.num_heads * first.head_dim,
        "hidden_size": made.hidden_size,
        "head_dims": sorted({layer.head_dim for layer in kinds}),
        "kv_heads": sorted({layer.num_kv_heads for layer in kinds}),
        "windows": sorted({layer.window or 0 for layer in kinds}),
        "bf16_gib": made.num_parameters * 2 / 2**30,
        "fp8_gb": made.num_parameters / 1e9,
        "int4_gb": made.num_parameters / 2e9,
        "adamw_states_gb": made.num_parameters * 12 / 1e9,
        "train_state_gib": made.num_parameters * 16 / 2**30,
        "tied_embeddings": made.tied_embeddings,
        "head_parameters": made.head_parameters,
        "expert_width": max(layer.moe_intermediate_size for layer in kinds),
        "quantization": made.quantization,
    }
    return Answer.of([], values, "\n".join(made.notes))


def job(given: Given) -> Answer:
    """Is a job file right, and what does it mean?"""
    made = (
        load_job(given["text"], given.get("overrides"))
        if "text" in given
        else job_from_values(given["config"], overrides=given.get("overrides"))
    )
    prices = [node.usd_per_hour for node in made.topology.nodes]
    known = [price for price in prices if price is not None]
    values = {
        "num_devices": made.topology.num_devices,
        "device_types": [node.device_type.name for node in made.topology.nodes],
        "node_sizes": [node.num_devices for node in made.topology.nodes],
        "usd_per_hour": round(sum(known), 2) if len(known) == len(prices) else None,
        "host_ram_gib": [node.host_ram_bytes / 2**30 for node in made.topology.nodes],
        "network_gbps": [node.nic_bytes_per_second * 8 / 1e9 for node in made.topology.nodes],
        "link_gigabytes_per_second": [node.intra_link.bytes_per_second / 1e9 for node in made.topology.nodes],
        "num_sequences": made.batch.num_prompts * made.batch.responses_per_prompt,
        "tasks": [task.name for task in made.workflow.tasks],
        "algorithm": made.workflow.algorithm,
        "nominal_device_gib": sum(node.num_devices * node.device_type.memory_bytes for node in made.topology.nodes)
        / 2**30,
    }
    if len(made.topology.nodes) > 1:
        values["between_nodes_gbps"] = made.topology.node_link(0, 1).bytes_per_second * 8 / 1e9
    return Answer(verdict="warn" if made.warnings else "accept", values=values, text="\n".join(made.warnings))


def price(given: Given) -> Answer:
    """Can a figure be the price of a node?"""
    problems = environment_rules.price_problems(
        given["usd_per_hour"], given.get("num_devices", 1), includes_devices=bool(given.get("includes_devices", True))
    )
    return Answer.of(problems, {"usd_per_hour": None if problems else given["usd_per_hour"]})


ASKS: dict[str, Callable[[Given], Answer]] = {
    function.__name__: function
    for function in (
        tensor_parallel, vocab_padding, pipeline, layout, batch, fleet, world, resources, environment, device,
        device_list, visible_devices, topology_text, dtype, model, job, price,
    )
}  # fmt: skip


def ask(name: str, given: Given) -> Answer:
    """Answer one question; an input error becomes a rejection with its rules."""
    try:
        return ASKS[name](given)
    except SpecError as error:
        return Answer.of(list(error.problems))
