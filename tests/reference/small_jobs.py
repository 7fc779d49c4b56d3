"""Random jobs that are small enough to enumerate: two or three device types, few devices, memory that presses."""

from __future__ import annotations

import random
from typing import Any

from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values

ALGORITHMS = ("GRPO", "GRPO", "DPO", "online DPO", "ReMax", "PPO", "multi-reward", "RLOO")


def small_model(rng: random.Random, name: str, *, plain: bool) -> dict[str, Any]:
    """A Qwen2-like model of 0.2 to 1.5 billion parameters; ``plain`` ones admit no tensor parallelism."""
    heads = 1 if plain else rng.choice((1, 2, 2, 4))
    hidden = rng.choice((2048, 4096))
    return {
        "name": name,
        "config": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": 1,
            "head_dim": hidden // max(heads, 8),
            "num_hidden_layers": 1 if plain else rng.choice((1, 2, 4)),
            "intermediate_size": hidden * rng.choice((2, 4)),
            "vocab_size": rng.choice((16_000, 64_000)),
            "tie_word_embeddings": rng.random() < 0.3,
            "max_position_embeddings": 8192,
        },
    }


def small_values(seed: int) -> dict[str, Any]:
    """Return the job file of one random job as plain data."""
    rng = random.Random(seed)
    algorithm = ALGORITHMS[seed % len(ALGORITHMS)]
    many_tasks = algorithm in ("PPO", "multi-reward")
    models = [small_model(rng, f"tiny-{number}", plain=many_tasks or rng.random() < 0.3) for number in range(2)]
    types = {
        name: {
            "flops": {"bf16": f"{rng.choice((50, 120, 400))}TFLOPS"},
            "memory": f"{rng.choice((5, 6, 8, 10, 12, 16, 24, 40))}GB",
            "memory_bandwidth": f"{rng.choice((300, 900, 2000))}GB/s",
            "vendor": "amd" if name == "c" and rng.random() < 0.3 else "nvidia",
        }
        for name in ("a", "b", "c")[: rng.choice((2, 2, 3))]
    }
    largest = {"DPO": 4, "GRPO": 3, "RLOO": 3, "ReMax": 2, "online DPO": 2, "PPO": 2, "multi-reward": 1}[algorithm]
    nodes = [
        {
            "id": f"{name}{number}",
            "gpus": devices,
            "type": name,
            "interconnect": link,
            "network": network,
            "host_ram": ram,
            "cpu_cores": 16,
            "host_link": "20GB/s",
            "host_memory_bandwidth": "100GB/s",
            "usd_per_hour": 1.5,
        }
        for name in types
        for devices, link, network, ram in [
            (
                rng.randint(1, largest),
                rng.choice(("20GB/s", "200GB/s")),
                rng.choice(("10Gbps", "100Gbps")),
                rng.choice(("16GiB", "48GiB", "256GiB")),
            )
        ]
        for number in range(rng.choice((1, 1, 2)) if largest * len(types) <= 6 else 1)
    ]
    workflow: dict[str, Any] = {"algorithm": algorithm.removeprefix("online "), "actor_model": models[0]}
    if algorithm != "multi-reward" and (algorithm != "GRPO" or rng.random() < 0.8):
        workflow["reference_model"] = models[0]
    if algorithm == "online DPO":
        workflow["online"] = True
    if algorithm not in ("GRPO", "DPO", "multi-reward") and rng.random() < 0.7:
        workflow["reward_model"] = {**models[1], "head": "scalar"}
    if algorithm == "multi-reward":
        workflow["reward_models"] = [{**models[1], "head": "scalar"}, {**models[0], "head": "scalar"}]
    if algorithm in ("PPO", "multi-reward"):
        workflow["critic_model"] = {**models[1], "head": "scalar"}
    if algorithm != "DPO" and rng.random() < 0.25:
        workflow["staleness"] = rng.choice((1, 2))
    return {
        "workflow": workflow,
        "device_types": types,
        "cluster_topology": {"nodes": nodes},
        "batch": {
            "num_prompts": rng.choice((2, 3, 4, 6)),
            "responses_per_prompt": 1 if algorithm in ("PPO", "DPO", "online DPO", "ReMax") else 2,
            "prompt_tokens": rng.choice((128, 1024)),
            "mean_response_tokens": 128,
            "max_response_tokens": 256,
            "num_mini_batches": rng.choice((1, 2)),
        },
        "optimizer": {
            "memory_safety_margin": 0.1,
            "max_search_seconds": 600,
            "executable": rng.random() < (0.9 if many_tasks else 0.3),  # fewer options: no offload, no sharding
        },
    }


def small_job(seed: int) -> Job:
    """One random job; equal seeds give equal jobs."""
    return job_from_values(small_values(seed), source=f"small job {seed}")
