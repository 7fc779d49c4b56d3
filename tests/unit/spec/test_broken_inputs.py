"""Broken job files: each gives one clear message that names the place, and nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.spec.load import load_job

WORKFLOW = "workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B}"
FLEET = "cluster_topology: {nodes: [{id: a, gpus: 8, type: H100}]}"

# What is broken -> (the file, where, words of the message)
BROKEN = {
    "unknown top-level key": (f"{WORKFLOW}\n{FLEET}\nclustr: 1", "clustr", "unknown key"),
    "unknown workflow key": (f"workflow: {{algorithm: GRPO, actor_modl: x}}\n{FLEET}", "workflow.actor_modl", "did you mean 'actor_model'"),
    "unknown node key": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpu: 8, type: H100}}]}}", "cluster_topology.nodes[0].gpu", "did you mean 'gpus'"),
    "renamed key": (f"{WORKFLOW}\n{FLEET}\nbatch: {{train_batch_size: 8}}", "batch.train_batch_size", "did you mean 'num_prompts'"),
    "wrong type of a count": (f"{WORKFLOW}\n{FLEET}\nbatch: {{num_prompts: many}}", "batch.num_prompts", "not a valid count"),
    "boolean for a number": (f"{WORKFLOW}\n{FLEET}\noptimizer: {{max_search_seconds: true}}", "optimizer.max_search_seconds", "not a valid number"),
    "no devices": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 0, type: H100}}]}}", "cluster_topology.nodes[0].gpus", "not a valid count"),
    "no nodes": (f"{WORKFLOW}\ncluster_topology: {{nodes: []}}", "cluster_topology.nodes", "no nodes"),
    "no fleet": (WORKFLOW + "\n", "cluster_topology", "missing"),
    "no workflow": (FLEET + "\n", "workflow", "missing"),
    "unknown algorithm": (f"workflow: {{algorithm: GRPOO, actor_model: Qwen2.5-7B}}\n{FLEET}", "workflow.algorithm", "did you mean 'GRPO'"),
    "unknown model": (f"workflow: {{algorithm: GRPO, actor_model: Qwen2.5-7}}\n{FLEET}", "workflow.actor_model", "did you mean 'Qwen2.5-7B'"),
    "unknown device": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H1000}}]}}", "cluster_topology.nodes[0].type", "unknown device"),
    "coarse device label": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: RTX}}]}}", "cluster_topology.nodes[0].type", "every RTX"),
    "unknown instance": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, instance: p5.49xlarge}}]}}", "cluster_topology.nodes[0].instance", "'p5.48xlarge'"),
    "more devices than the instance": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, instance: p5.48xlarge, gpus: 16}}]}}", "cluster_topology.nodes[0].gpus", "has 8 devices"),
    "type against the instance": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, instance: p5.48xlarge, type: L40S}}]}}", "cluster_topology.nodes[0].type", "carries H100"),
    "unknown interconnect": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100, interconnect: NVLnk}}]}}", "cluster_topology.nodes[0].interconnect", "unknown interconnect"),
    "bandwidth without a unit": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100, network: '400 G'}}]}}", "cluster_topology.nodes[0].network", "not a bandwidth"),
    "node id twice": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100}}, {{id: a, gpus: 8, type: H100}}]}}", "cluster_topology.nodes[1].id", "used twice"),
    "key twice": (f"{WORKFLOW}\n{FLEET}\n{FLEET}", "cluster_topology", "given twice"),
    "broken YAML": (f"{WORKFLOW}\n{FLEET}\nbatch: [1", "", "not valid YAML"),
    "an alias": (f"{WORKFLOW}\n{FLEET}\nbatch: &b {{}}", "", "aliases and anchors"),
    "a list for a mapping": (f"{WORKFLOW}\n{FLEET}\nbatch: [1]", "batch", "must be a mapping"),
    "not a mapping at all": ("just\ntext", "file", "must be a mapping"),
    "too deep": ("a: " + "[" * 40 + "]" * 40 + "\n", "", "nested too deeply"),
    "margin out of range": (f"{WORKFLOW}\n{FLEET}\noptimizer: {{memory_safety_margin: 1.5}}", "optimizer.memory_safety_margin", "0 to 0.9"),
    "unknown solver": (f"{WORKFLOW}\n{FLEET}\noptimizer: {{solver: fast}}", "optimizer.solver", "hybrid, ilp"),
    "mean above maximum": (f"{WORKFLOW}\n{FLEET}\nbatch: {{mean_response_tokens: 2000}}", "batch.mean_response_tokens", "larger than"),
    "more mini-batches than sequences": (f"{WORKFLOW}\n{FLEET}\nbatch: {{num_prompts: 1, responses_per_prompt: 2}}", "batch.num_mini_batches", "more mini-batches"),
    "PPO without critic": (f"workflow: {{algorithm: PPO, actor_model: Qwen2.5-7B}}\n{FLEET}", "workflow.critic_model", "needs a critic"),
    "critic in GRPO": (f"workflow: {{algorithm: GRPO, actor_model: Qwen2.5-7B, critic_model: Qwen2.5-7B}}\n{FLEET}", "workflow.critic_model", "has no critic"),
    "DPO without reference": (f"workflow: {{algorithm: DPO, actor_model: Qwen2.5-7B}}\n{FLEET}", "workflow.reference_model", "needs a reference"),
    "one of several rewards": (f"workflow: {{algorithm: multi-reward, actor_model: Qwen2.5-7B, critic_model: Qwen2.5-7B, reward_model: Qwen2.5-7B}}\n{FLEET}", "workflow.reward_models", "at least two"),
    "no dtype for the fleet": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: V100-SXM2-32GB}}]}}", "precision.dtype", "no device of the fleet"),
    "half a link": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100}}], links: [{{from: a}}]}}", "cluster_topology.links[0]", "two different ends"),
    "link to nowhere": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100}}], links: [{{between: [a, b], bandwidth: 1Gbps}}]}}", "cluster_topology.links[0]", "no node of that id"),
    "matrix of another size": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100}}], link_matrix: {{bandwidth: [[0, 1], [1, 0]]}}}}", "cluster_topology.link_matrix.bandwidth", "1 x 1 matrix"),
    "zero price": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100, usd_per_hour: 0}}]}}", "cluster_topology.nodes[0].usd_per_hour", "0 is not a price"),
    "device without figures": (f"{WORKFLOW}\n{FLEET}\ndevice_types: {{x: {{memory: 10GB}}}}", "device_types.x.flops", "missing"),
    "topology text of another size": (f"{WORKFLOW}\ncluster_topology: {{nodes: [{{id: a, gpus: 8, type: H100, topo: \"GPU0 GPU1\\nGPU0 X NV18\\nGPU1 NV18 X\"}}]}}", "cluster_topology.nodes[0].topo", "2 GPUs"),
    "heads that do not divide": (f"workflow: {{algorithm: GRPO, actor_model: {{name: x, config: {{model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 6, num_key_value_heads: 4, head_dim: 16, intermediate_size: 128, vocab_size: 256}}}}}}\n{FLEET}", "workflow.actor_model.config.num_key_value_heads", "does not divide"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_one_clear_message(what: str) -> None:
    text, path, words = BROKEN[what]
    with pytest.raises(SpecError) as caught:
        load_job(text)
    assert len(caught.value.problems) == 1, [str(problem) for problem in caught.value.problems]
    assert caught.value.problems[0].path == path
    assert words in str(caught.value.problems[0])


def test_every_problem_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        load_job(
            "workflow: {algorithm: PPO, actor_model: nope}\ncluster_topology: {nodes: [{id: a, gpus: -1, type: H1}]}\noptimizer: {solver: x, seed: -1}\n"
        )
    paths = {problem.path for problem in caught.value.problems}
    assert {"workflow.actor_model", "cluster_topology.nodes[0].gpus", "optimizer.solver", "optimizer.seed"} <= paths


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(SpecError, match="no such job file"):
            load_job(path)


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="UTF-8"):
        load_job(file)


def test_huge_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("#" * (5 * 1024**2))
    with pytest.raises(SpecError, match="too large"):
        load_job(file)


def test_unsupported_architecture_is_named() -> None:
    with pytest.raises(SpecError, match="linear-attention layers"):
        load_job(f"workflow: {{algorithm: GRPO, actor_model: {{config: {{model_type: qwen3_next}}}}}}\n{FLEET}")


def test_hub_is_not_asked_unless_allowed() -> None:
    with pytest.raises(SpecError, match="allow_hub"):
        load_job(f"workflow: {{algorithm: GRPO, actor_model: someone/some-model}}\n{FLEET}")
