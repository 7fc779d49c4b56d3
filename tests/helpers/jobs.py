"""Small jobs for tests, as YAML text."""

from __future__ import annotations

from collections.abc import Mapping

from hetrl.spec.job import Job
from hetrl.spec.load import load_job

TWO_NODES = """
workflow:
  algorithm: GRPO
  actor_model: Qwen/Qwen2.5-7B-Instruct
  reference_model: Qwen/Qwen2.5-7B-Instruct
cluster_topology:
  nodes:
    - {id: fast, gpus: 4, type: H100, interconnect: NVLink-900G}
    - {id: slow, gpus: 4, type: L40S, interconnect: PCIe-Gen4}
optimizer: {solver: hybrid, max_search_seconds: 60, memory_safety_margin: 0.1}
batch:
  num_prompts: 64
  responses_per_prompt: 4
  prompt_tokens: 512
  mean_response_tokens: 256
  max_response_tokens: 512
"""

MODELS = {
    "PPO": {"critic_model": "Qwen/Qwen3-4B", "reward_model": "Qwen/Qwen3-4B", "reference_model": "Qwen/Qwen3-4B"},
    "GRPO": {"reward_model": "Qwen/Qwen3-4B", "reference_model": "Qwen/Qwen3-4B"},
    "ReMax": {"reward_model": "Qwen/Qwen3-4B", "reference_model": "Qwen/Qwen3-4B"},
    "RLOO": {"reward_model": "Qwen/Qwen3-4B", "reference_model": "Qwen/Qwen3-4B"},
    "DPO": {"reference_model": "Qwen/Qwen3-4B"},
    "multi-reward": {
        "critic_model": "Qwen/Qwen3-4B",
        "reward_models": ["Qwen/Qwen3-4B", "Qwen/Qwen3-8B"],
        "reference_model": "Qwen/Qwen3-4B",
    },
}


def two_nodes(overrides: Mapping[str, object] | None = None) -> Job:
    """Four H100 and four L40S, Qwen2.5-7B, GRPO without a reward model."""
    return load_job(TWO_NODES, overrides=overrides)


def workflow_job(algorithm: str, **more: object) -> Job:
    """Any built-in workflow with a 4B actor on the two nodes."""
    workflow = {"algorithm": algorithm, "actor_model": "Qwen/Qwen3-4B", **MODELS[algorithm], **more}
    return load_job(TWO_NODES, overrides={"workflow": workflow})
