"""Generated job files, model configs, device files and topologies end in an answer or a SpecError, quickly.

The unit suite runs a few hundred; ``-m slow`` runs ten thousand.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetrl.errors import SpecError
from hetrl.spec.device_names import find_device, known_names
from hetrl.spec.hf_config import model_from_config
from hetrl.spec.hf_families import families
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values, load_job
from hetrl.spec.model_source import known_models
from hetrl.spec.rules import valid_tensor_degrees
from hetrl.spec.topo_text import parse_device_list, parse_topo, parse_visible_devices
from hetrl.workload.outlook import fleet_outlook

SLOWEST_SECONDS = 60.0
"""Of CPU: an input that takes exponential time is found, a busy machine is not."""
QUICK = 100
THOROUGH = 2_500  # times four kinds of input: ten thousand

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**19), 10**19),
    st.integers(-2, 64),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["H100", "A100", "40GB", "400Gbps", "30us", "bf16", "NVLink-900G", "1e999", "-1", "0x10", "PPO", "Qwen2.5-7B"]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
counts = st.integers(1, 8) | scalars


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values that are usually right and sometimes anything."""
    return st.integers(0, 60).flatmap(lambda draw: anything if draw == 1 else good)


def mapping(
    required: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[Any]:
    shape = st.fixed_dictionaries(required, optional=optional)
    more = st.builds(lambda a, b: {**a, **b}, shape, st.dictionaries(st.text(max_size=8), anything, max_size=2))
    return st.integers(0, 30).flatmap(lambda draw: more if draw == 1 else shape)


sizes = st.sampled_from(["80GB", "46068MiB", 10**9, "1TB", "0GB"])
rates = st.sampled_from(["100Gbps", "50GB/s", "1.6Tbps", 12.5e9, "5Kbps"])
times = st.sampled_from(["30us", "5ms", 0, "1s", 1e-6])
node_ids = st.sampled_from(["a", "b", "c", "node-p5-01"])
devices = st.sampled_from([*known_names(), "A100", "my-npu", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"])
nodes = mapping(
    {"id": mostly(node_ids), "gpus": mostly(st.integers(1, 16)), "type": mostly(devices)},
    {
        "interconnect": mostly(st.sampled_from(["NVLink-900G", "PCIe-Gen4", "50GB/s", "PCIe Gen5", "NVLink3"])),
        "memory": mostly(sizes),
        "host_ram": mostly(sizes),
        "cpu_cores": mostly(counts),
        "network": mostly(rates),
        "network_latency": mostly(times),
        "uplink": mostly(rates),
        "usd_per_hour": mostly(st.floats(1, 100)),
        "rack": mostly(node_ids),
        "zone": mostly(node_ids),
        "region": mostly(node_ids),
        "nvlink_domain": mostly(node_ids),
        "count": mostly(st.integers(1, 40)),
        "interconnect_latency": mostly(times),
    },
)
instances = mapping(
    {"id": mostly(node_ids), "instance": mostly(st.sampled_from(["p5.48xlarge", "p4d.24xlarge", "g6e.12xlarge"]))},
    {"gpus": mostly(st.integers(1, 4))},
)
link = mapping(
    {},
    {
        "from": mostly(node_ids),
        "to": mostly(node_ids),
        "between": mostly(st.lists(node_ids, max_size=3)),
        "bandwidth": mostly(rates),
        "latency": mostly(times),
    },
)
level = mapping({"bandwidth": mostly(rates)}, {"latency": mostly(times)})
topology = mapping(
    {"nodes": mostly(st.lists(nodes | nodes | instances, min_size=1, max_size=3))},
    {
        "links": mostly(st.lists(link, max_size=3)),
        "network": mostly(mapping({}, {"rack": level, "zone": level, "region": level, "wan": level})),
        "rack_uplink": mostly(rates),
        "link_matrix": anything
        | anything
        | mostly(
            mapping(
                {"bandwidth": st.lists(st.lists(rates | scalars, max_size=3), max_size=3)},
                {"latency": st.lists(st.lists(times, max_size=3), max_size=3)},
            )
        ),
    },
)
device_type = mapping(
    {
        "flops": mostly(
            st.sampled_from(["300TFLOPS", 1e14])
            | st.dictionaries(st.sampled_from(["bf16", "fp32", "int4"]), st.sampled_from(["1TFLOPS", 1e12]), max_size=3)
        )
    },
    {
        "memory": mostly(sizes),
        "memory_bandwidth": mostly(rates),
        "vendor": mostly(st.sampled_from(["nvidia", "cpu", "other"])),
        "like": mostly(devices),
        "can_train": mostly(st.booleans()),
    },
)
small = st.integers(4, 16)
layer_counts = st.integers(1, 200)
some_layers = st.lists(st.integers(0, 9), max_size=3)
config = mapping(
    {
        "model_type": mostly(st.sampled_from([*families(), "mamba", "gemma3", "kimi_k2"])),
        "hidden_size": mostly(st.sampled_from([64, 96, 4096])),
        "num_hidden_layers": mostly(layer_counts),
        "num_attention_heads": mostly(st.sampled_from([4, 8, 32])),
        "intermediate_size": mostly(st.integers(1, 30000)),
    },
    {
        "num_key_value_heads": mostly(st.sampled_from([1, 2, 4])),
        "head_dim": mostly(st.sampled_from([16, 128])),
        "vocab_size": mostly(st.integers(1, 300000)),
        "tie_word_embeddings": mostly(st.booleans()),
        "sliding_window": mostly(st.integers(0, 8192)),
        "layer_types": mostly(st.lists(st.sampled_from(["full_attention", "sliding_attention"]), max_size=8)),
        "num_experts": mostly(small),
        "num_local_experts": mostly(small),
        "n_routed_experts": mostly(small),
        "num_experts_per_tok": mostly(st.integers(1, 4)),
        "moe_intermediate_size": mostly(st.integers(1, 4096)),
        "decoder_sparse_step": mostly(st.integers(1, 3)),
        "mlp_only_layers": mostly(some_layers),
        "first_k_dense_replace": mostly(st.integers(0, 4)),
        "kv_lora_rank": mostly(small),
        "q_lora_rank": mostly(small),
        "qk_rope_head_dim": mostly(small),
        "qk_nope_head_dim": mostly(small),
        "v_head_dim": mostly(small),
        "attention_bias": mostly(st.booleans()),
        "quantization_config": mostly(st.just({"quant_method": "fp8", "weight_block_size": [128, 128]})),
        "hidden_size_per_layer_input": mostly(st.just(0)),
        "sliding_window_pattern": mostly(st.integers(1, 6)),
        "moe_layers": mostly(some_layers),
    },
)
model = mostly(st.sampled_from(known_models())) | mapping(
    {"config": config}, {"name": mostly(st.text(max_size=5)), "head": mostly(st.sampled_from(["lm", "scalar"]))}
)


def workflow_of(algorithm: str) -> st.SearchStrategy[Any]:
    """Workflows with the models that an algorithm needs, and now and then others."""
    needed: dict[str, st.SearchStrategy[Any]] = {"algorithm": mostly(st.just(algorithm)), "actor_model": model}
    if algorithm in ("PPO", "multi-reward"):
        needed["critic_model"] = model
    if algorithm == "DPO":
        needed |= {"reference_model": model, "online": mostly(st.booleans())}
    rewards = {"reward_models": st.lists(model, min_size=2, max_size=3)} if algorithm == "multi-reward" else {}
    optional = {"reference_model": model, "staleness": mostly(st.integers(0, 4))}
    if not rewards:
        optional["reward_model"] = model
    return mapping({**needed, **rewards}, {key: value for key, value in optional.items() if key not in needed})


workflow = st.sampled_from(["PPO", "GRPO", "DPO", "ReMax", "RLOO", "multi-reward", "none"]).flatmap(workflow_of)
job = mapping(
    {"workflow": mostly(workflow), "cluster_topology": mostly(topology)},
    {
        "device_types": mostly(st.dictionaries(st.sampled_from(["my-npu", "x"]), device_type, max_size=2)),
        "batch": mostly(
            mapping(
                {},
                {
                    "num_prompts": mostly(small),
                    "responses_per_prompt": mostly(small),
                    "mean_response_tokens": mostly(small),
                    "max_response_tokens": mostly(st.integers(16, 999)),
                    "num_mini_batches": mostly(st.integers(1, 4)),
                    "response_histogram": mostly(st.just([[4, 1], [9, 2]])),
                },
            )
        ),
        "precision": mostly(
            mapping(
                {},
                {
                    "dtype": mostly(st.sampled_from(["bf16", "fp16", "fp32"])),
                    "kv_cache_dtype": mostly(st.sampled_from(["bf16", "fp8"])),
                    "lora_rank": mostly(small),
                },
            )
        ),
        "optimizer": mostly(
            mapping(
                {},
                {
                    "solver": mostly(st.sampled_from(["hybrid", "ilp"])),
                    "memory_safety_margin": mostly(st.floats(0, 0.9)),
                    "seed": mostly(small),
                    "budget": mostly(small),
                },
            )
        ),
        "run": mostly(
            mapping(
                {},
                {
                    "prompts": mostly(st.just("p.jsonl")),
                    "num_steps": mostly(small),
                    "learning_rate": mostly(st.floats(0, 1)),
                },
            )
        ),
    },
)

TOPO_WORDS = [
    "GPU0",
    "GPU1",
    "NIC0",
    "NV4",
    "NV18",
    "PIX",
    "SYS",
    "X",
    "\t",
    "\n",
    "0-3,8-11",
    "CPU",
    "Affinity",
    "N/A",
    "\x1b[4m",
    "GPU",
    "é",
]
topo_texts = st.lists(st.sampled_from(TOPO_WORDS), max_size=60).map(" ".join) | st.text(max_size=80)
list_texts = st.lists(
    st.sampled_from(
        [
            "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n",
            "  MIG 2g.20gb     Device  0: (UUID: MIG-a)\n",
            "  MIG 9g.999gb Device 1: (UUID: x)\n",
            "GPU 1: what\n",
            "GPU",
            "\n",
        ]
    ),
    max_size=8,
).map("".join) | st.text(max_size=60)
names = st.lists(
    st.sampled_from(
        ["NVIDIA", "A100", "H100", "MIG", "3g.20gb", "80GB", "-", " ", "RTX", "4090", "SXM4", "\x00", "GPU-ab12"]
    ),
    max_size=5,
).map("".join) | st.text(max_size=30)


def answered(action: Callable[[], object]) -> object:
    """Run; a SpecError with problems is an answer, anything else is not. Fail if it takes too long."""
    started = time.process_time()
    try:
        result = action()
    except SpecError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        result = None
    assert time.process_time() - started < SLOWEST_SECONDS
    return result


def check_job(values: Any) -> None:
    loaded = answered(lambda: job_from_values(values))
    if isinstance(loaded, Job):
        assert loaded.topology.num_devices >= 1
        assert answered(lambda: fleet_outlook(loaded)) is not None
        for each in loaded.workflow.roles.values():
            assert answered(lambda m=each: valid_tensor_degrees(m, 64))  # type: ignore[misc]


def check_text(values: Any, seed: int) -> None:
    """Load the file's text after cutting, doubling or replacing some of it."""
    text = yaml.safe_dump(values, allow_unicode=True) if seed % 2 else json.dumps(values, default=str)
    rng = random.Random(seed)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        text = rng.choice(
            [text[:at], text[:at] + rng.choice(":[]{}&*!|>'\"%@`\t\x00\ud7ff") + text[at:], text + "\n" + text[at:]]
        )
    answered(lambda: load_job(text + "\n"))


def check_config(values: Any) -> None:
    made = answered(lambda: model_from_config(values, name="fuzzed"))
    if made is not None:
        assert made.num_parameters > 0 and made.num_active_parameters <= made.num_parameters  # type: ignore[attr-defined]


def check_texts(topo: str, listing: str, name: str) -> None:
    answered(lambda: parse_topo(topo))
    answered(lambda: parse_device_list(listing))
    answered(lambda: find_device(name))
    answered(lambda: parse_visible_devices(name))


def examples(count: int) -> Callable[[Any], Any]:
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


@given(job)
@examples(QUICK)
def test_job_values(values: Any) -> None:
    check_job(values)


@given(job, st.integers(0, 2**32))
@examples(QUICK)
def test_job_text(values: Any, seed: int) -> None:
    check_text(values, seed)


@given(config | anything)
@examples(QUICK)
def test_model_configs(values: Any) -> None:
    check_config(values)


@given(topo_texts, list_texts, names)
@examples(QUICK)
def test_texts_of_tools(topo: str, listing: str, name: str) -> None:
    check_texts(topo, listing, name)


@pytest.mark.slow
@given(job)
@examples(THOROUGH)
def test_many_job_values(values: Any) -> None:
    check_job(values)


@pytest.mark.slow
@given(job, st.integers(0, 2**32))
@examples(THOROUGH)
def test_many_job_texts(values: Any, seed: int) -> None:
    check_text(values, seed)


@pytest.mark.slow
@given(config | anything)
@examples(THOROUGH)
def test_many_model_configs(values: Any) -> None:
    check_config(values)


@pytest.mark.slow
@given(topo_texts, list_texts, names)
@examples(THOROUGH)
def test_many_texts_of_tools(topo: str, listing: str, name: str) -> None:
    check_texts(topo, listing, name)
