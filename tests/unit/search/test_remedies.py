"""What is said to help a job for which nothing fits helps: every change named is made, and a plan found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.search.hybrid import solve
from hetrl.search.result import SearchResult
from hetrl.spec.load import job_from_values
from hetrl.units import format_bytes
from hetrl.workload.flops import lora_parameters

PREFIX = "would help: "


def search(values: dict[str, Any]) -> SearchResult:
    job = job_from_values(values, source="too small")
    return solve(job, UnitCosts(CostModel.builtin(), job.precision))


def job(actor: str, nodes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    workflow = {"algorithm": "GRPO", "actor_model": actor, "reference_model": actor}
    return {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "optimizer": {"budget": 40}, **more}


def changed(values: dict[str, Any], remedy: str) -> dict[str, Any]:
    optimizer, topology = values["optimizer"], values["cluster_topology"]
    if found := re.match(r"an optimizer\.memory_safety_margin of (\S+)", remedy):
        return {**values, "optimizer": {**optimizer, "memory_safety_margin": float(found[1])}}
    if found := re.match(r"LoRA \(precision\.lora_rank, tried with (\d+)\)", remedy):
        return {**values, "precision": {"lora_rank": int(found[1])}}
    if found := re.match(r"(\d+) more nodes? like (\S+)", remedy):
        node = next(each for each in topology["nodes"] if each["id"] == found[2])
        nodes = [*topology["nodes"], {**node, "id": "more", "count": int(found[1])}]
        return {**values, "cluster_topology": {**topology, "nodes": nodes}}
    if remedy.startswith("more host_ram"):
        nodes = [{**node, "host_ram": "4TB"} for node in topology["nodes"]]
        return {**values, "cluster_topology": {**topology, "nodes": nodes}}
    assert remedy == "fewer or other constraints"
    return {**values, "optimizer": {key: value for key, value in optimizer.items() if key != "constraints"}}


L4S = {"id": "small", "gpus": 2, "type": "L4", "interconnect": "PCIe-Gen4"}
L40S = {"id": "two", "gpus": 2, "type": "L40S", "interconnect": "PCIe-Gen4"}
H100 = {"id": "one", "gpus": 1, "type": "H100", "interconnect": "NVLink-900G"}


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        (job("Llama-3-70B", [{**H100, "gpus": 4}]), {"memory_safety_margin of 0.05", "1 more node like one"}),
        (job("Qwen2.5-7B", [L4S], optimizer={"budget": 40, "memory_safety_margin": 0.4}), {"memory_safety_margin"}),
        (job("Qwen2.5-7B", [{**L40S, "host_ram": "16GB"}]), {"more host_ram", "LoRA", "2 more nodes"}),
        (
            job(
                "Qwen2.5-7B",
                [{**L4S, "host_ram": "2GB"}, {**H100, "gpus": 4}],
                optimizer={"budget": 40, "constraints": {"pin": {"actor_train": ["small"]}}},
            ),
            {"more host_ram", "fewer or other constraints"},
        ),
    ],
)
def test_what_is_said_to_help_helps(values: dict[str, Any], kinds: set[str]) -> None:
    with pytest.raises(InfeasibleError) as caught:
        search(values)
    named = [line.removeprefix(PREFIX) for line in caught.value.reasons if line.startswith(PREFIX)]
    assert all(any(kind in line for line in named) for kind in kinds), named
    for remedy in named:
        assert search(changed(values, remedy)).estimate.feasible, remedy


def test_where_nothing_tried_helps_it_says_so() -> None:
    values = job("Qwen2.5-7B", [L4S], batch={"num_prompts": 1, "prompt_tokens": 16_000_000})
    with pytest.raises(InfeasibleError) as caught:
        search(values)
    assert not [line for line in caught.value.reasons if line.startswith(PREFIX)]
    assert caught.value.reasons[-1].startswith("nothing that was tried helps")


def test_training_state_is_that_of_the_adapters() -> None:
    values = job("Qwen2.5-7B", [L4S], precision={"lora_rank": 8}, batch={"num_prompts": 1, "prompt_tokens": 16_000_000})
    with pytest.raises(InfeasibleError) as caught:
        search(values)
    line = next(each for each in caught.value.reasons if each.startswith("actor_train"))
    model = job_from_values(values, source="adapters").workflow.task("actor_train").model
    trained = lora_parameters(model, 8)
    whole = format_bytes(2 * model.num_parameters + 14 * trained)
    without = format_bytes(2 * model.num_parameters + 2 * trained)
    assert line.startswith(
        f"actor_train: {whole} of training state (adapters of rank 8), {without} with optimizer states on the host"
    )
