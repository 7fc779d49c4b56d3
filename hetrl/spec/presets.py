"""The benchmark instances, by name: the same jobs for every benchmark, test and table.

Names are ``fleet``, or ``fleet/model/algorithm``: ``guide20``, ``guideA/Llama-3-8B/PPO``, ``paper64_wan/GRPO``,
``synthetic1024``. `benchmark_names` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetrl.errors import Problem, SpecError, did_you_mean
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values

GUIDE_MODELS = ("Llama-3-8B", "Llama-3-70B", "Qwen2.5-72B")
# Critic and reward of a guide job: the small model of the same family, as in the guide's "70B actor + 8B critic".
SMALL_MODEL = {
    "Llama-3-8B": ("Llama-3-8B", "FsfairX-LLaMA3-RM-v0.1"),
    "Llama-3-70B": ("Llama-3-8B", "FsfairX-LLaMA3-RM-v0.1"),
    "Qwen2.5-72B": ("Qwen2.5-7B", "Qwen2.5-7B"),
}
GUIDE_ALGORITHMS = ("PPO", "DPO")
PAPER_FLEETS = ("paper64_lan", "paper64_uniform_wan", "paper64_wan")
PAPER_ALGORITHMS = ("PPO", "GRPO")
SYNTHETIC_NODES = {"synthetic1024": 128, "synthetic4096": 512}
SYNTHETIC_PROMPTS = {"synthetic1024": 4096, "synthetic4096": 16384}
SYNTHETIC_TYPES = ("H100", "A100-80GB", "L40S", "L4")


def benchmark_names() -> tuple[str, ...]:
    """Return the names of all benchmark instances."""
    guide = [
        f"{fleet}/{model}/{algorithm}"
        for fleet in ("guideA", "guideB", "guideC")
        for model in GUIDE_MODELS
        for algorithm in GUIDE_ALGORITHMS
    ]
    paper = [f"{fleet}/{algorithm}" for fleet in PAPER_FLEETS for algorithm in PAPER_ALGORITHMS]
    return ("guide20", *guide, *paper, *SYNTHETIC_NODES)


def benchmark_instance(name: str, overrides: Mapping[str, object] | None = None) -> Job:
    """Return the job of a benchmark instance.

    Raises
    ------
    SpecError
        For an unknown name.

    Examples
    --------
    >>> benchmark_instance("guide20").topology.num_devices
    20
    """
    return job_from_values(instance_values(name), source=name, overrides=overrides)


def instance_values(name: str) -> dict[str, Any]:
    """Return what a job file of a benchmark instance holds; raises as `benchmark_instance` does."""
    if name not in benchmark_names():
        raise SpecError(
            Problem(
                path="benchmark",
                message="unknown instance",
                found=name,
                valid=did_you_mean(name, benchmark_names()) or ", ".join(benchmark_names()),
            )
        )
    fleet, *rest = name.split("/")
    values: dict[str, Any]
    if fleet == "guide20":
        values = {
            "workflow": ppo(
                "meta-llama/Meta-Llama-3-70B-Instruct", "meta-llama/Meta-Llama-3-8B", "sfairXC/FsfairX-LLaMA3-RM-v0.1"
            ),
            "cluster_topology": {"nodes": guide_nodes()},
            "optimizer": {"solver": "hybrid", "max_search_seconds": 30, "memory_safety_margin": 0.15},
        }
    elif fleet.startswith("guide"):
        values = {"workflow": guide_workflow(*rest), "cluster_topology": {"nodes": guide_nodes(fleet)}}
    elif fleet.startswith("paper64"):
        values = paper_job(fleet, rest[0])
    else:
        values = synthetic_job(fleet)
    return values


def ppo(actor: str, critic: str, reward: str) -> dict[str, object]:
    """Return the workflow section of a PPO job whose reference is the actor's model."""
    return {
        "algorithm": "PPO",
        "actor_model": actor,
        "critic_model": critic,
        "reward_model": reward,
        "reference_model": actor,
    }


def guide_workflow(model: str, algorithm: str) -> dict[str, object]:
    """Return the workflow section of a guide cluster's job; DPO is offline."""
    if algorithm == "DPO":
        return {"algorithm": "DPO", "actor_model": model, "reference_model": model, "online": False}
    return ppo(model, *SMALL_MODEL[model])


def _node(name: str, count: int, device: str, interconnect: str, **more: object) -> dict[str, Any]:
    return {"id": name, "gpus": count, "type": device, "interconnect": interconnect, **more}


def guide_nodes(fleet: str = "guide20") -> list[dict[str, Any]]:
    """Return the nodes of a guide fleet; links follow from the NICs of the usual instances."""
    h100 = _node("node-p5-01", 8, "H100", "NVLink-900G")
    if fleet == "guide20":
        return [h100, _node("node-p4d-01", 8, "A100-80GB", "NVLink-600G"), _node("node-g6e-01", 4, "L40S", "PCIe-Gen4")]
    if fleet == "guideA":
        return [h100, _node("node-p4d-01", 8, "A100-40GB", "NVLink-600G")]
    if fleet == "guideB":
        l40s = [_node(f"node-g6e-0{number}", 4, "L40S", "PCIe-Gen4") for number in (1, 2)]
        return [_node("node-p4d-01", 8, "A100-40GB", "NVLink-600G"), *l40s]
    return [_node(f"node-a100-0{number}", 8, "A100-80GB", "NVLink-600G", network="100Gbps") for number in (1, 2)]


def paper_job(fleet: str, algorithm: str) -> dict[str, object]:
    """Return a job of the paper's 64 devices: Qwen3-8B in every role, 1,024 tokens in, at most 1,024 out."""
    kinds = ["A100-40GB"] * 3 + ["L40S"] * 3 + ["L4"] * 2
    links = {"A100-40GB": "NVLink-600G", "L40S": "PCIe-Gen4", "L4": "PCIe-Gen4"}
    nodes = [
        _node(f"node-{number}", 8, kind, links[kind], region=f"region-{number}" if fleet != "paper64_lan" else None)
        for number, kind in enumerate(kinds)
    ]
    topology: dict[str, object] = {"nodes": nodes}
    if fleet == "paper64_lan":
        topology["network"] = {"zone": {"bandwidth": "100Gbps", "latency": "50us"}}
    elif fleet == "paper64_uniform_wan":
        topology["network"] = {"wan": {"bandwidth": "5Gbps", "latency": "10ms"}}
    else:
        topology["links"] = [
            {"from": f"node-{i}", "to": f"node-{j}",
             "bandwidth": f"{1.9 + 0.62 * ((i * j) % 6)}Gbps", "latency": f"{5 + 5 * ((i + j) % 6)}ms"}
            for i in range(8) for j in range(8) if i != j
        ]  # fmt: skip
    workflow: dict[str, object] = ppo("Qwen3-8B", "Qwen3-8B", "Qwen3-8B")
    if algorithm == "GRPO":
        workflow = {
            "algorithm": "GRPO",
            "actor_model": "Qwen3-8B",
            "reward_model": "Qwen3-8B",
            "reference_model": "Qwen3-8B",
        }
    responses = 8 if algorithm == "GRPO" else 1
    batch = {
        "num_prompts": 1024 // responses,
        "responses_per_prompt": responses,
        "prompt_tokens": 1024,
        "max_response_tokens": 1024,
    }
    return {"workflow": workflow, "cluster_topology": topology, "batch": batch}


def synthetic_job(fleet: str) -> dict[str, object]:
    """Return a large generated fleet: racks of eight nodes with a shared uplink, four device types in turn."""
    links = {"H100": "NVLink-900G", "A100-80GB": "NVLink-600G", "L40S": "PCIe-Gen4", "L4": "PCIe-Gen4"}
    nodes = [
        _node(
            f"node-{number:03d}",
            8,
            SYNTHETIC_TYPES[number % 4],
            links[SYNTHETIC_TYPES[number % 4]],
            rack=f"rack-{number // 8:02d}",
            network="400Gbps",
        )
        for number in range(SYNTHETIC_NODES[fleet])
    ]
    network = {"rack": {"bandwidth": "400Gbps", "latency": "20us"}, "zone": {"bandwidth": "100Gbps", "latency": "60us"}}
    return {
        "workflow": ppo("Llama-3-70B", "Llama-3-8B", "FsfairX-LLaMA3-RM-v0.1"),
        "cluster_topology": {"nodes": nodes, "network": network, "rack_uplink": "1.6Tbps"},
        "batch": {"num_prompts": SYNTHETIC_PROMPTS[fleet]},
    }
