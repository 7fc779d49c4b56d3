"""Rows of published end-to-end tables as workloads: what ran, on what, in which unit the result is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hetrl.cost.published import device_of
from hetrl.cost.shipped import read_shipped
from hetrl.errors import SpecError
from hetrl.spec.devices import DeviceType
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model


class Inexpressible(Exception):
    """A row that the model cannot express; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row: what ran. Counts are for one step (training) or one batch (generation)."""

    kind: str
    family: str
    device: DeviceType
    gpu: str
    model: Model
    dtype: str
    num_devices: int
    tensor_parallel: int
    batch: int
    input_tokens: int
    output_tokens: int = 0
    micro_batch: int = 1
    num_stages: int = 1
    context_parallel: int = 1
    virtual_stages: int = 1
    expert_parallel: int = 1
    recompute: bool = False
    lora: bool = False
    generate_devices: int = 1
    train_batch: int = 0
    fully_sharded: bool = True
    unit: str = "s"

    @property
    def configuration(self) -> str:
        """What a split keeps together: GPU, framework, model, parallelism; batch and lengths vary inside."""
        degrees = f"{self.num_devices}|{self.tensor_parallel}|{self.num_stages}|{self.context_parallel}"
        return f"{self.gpu}|{self.family}|{self.model.name}|{degrees}|{self.dtype}"

    @property
    def group(self) -> str:
        """What shares coefficients."""
        return f"{self.kind}|{self.family}|{self.gpu}"


def scenario_of(row: Mapping[str, str]) -> Scenario:
    """Read a row; `Inexpressible` with the reason if it is none of the kinds below."""
    if row.get("suspect"):
        raise Inexpressible("marked as suspect")
    category, metric = row["category"], row["metric"]
    if category == "train_step" and metric in ("tokens_per_s", "tokens_per_s_per_gpu"):
        return _train_scenario(row)
    if category == "generation_batch" and metric == "batch_latency":
        return _generation_scenario(row)
    if category == "generation_throughput" and metric.startswith("output_tokens_per_s"):
        return _generation_scenario(row)
    if category == "rl_step" and metric == "total_step_time":
        return _rl_scenario(row)
    raise Inexpressible(f"{category}, {metric}: not composed")


def _train_scenario(row: Mapping[str, str]) -> Scenario:
    parallel = row["train_parallel"]
    degrees = {name: _degree(parallel, name) for name in ("TP", "PP", "CP", "VP", "EP")}
    sharded = "FSDP=FULL_SHARD" in parallel
    if not sharded and "FSDP=SHARD_GRAD_OP" not in parallel and "TP=" not in parallel:
        raise Inexpressible("train_step: parallelism not stated")
    num_devices = _integer(row["num_gpus"], "num_gpus")
    model_parallel = degrees["TP"] * degrees["PP"] * degrees["CP"]
    if num_devices % model_parallel:
        raise Inexpressible("train_step: the degrees do not divide the number of GPUs")
    return Scenario(
        kind="train_step",
        family=_family(row["framework"]),
        device=_device(row["gpu"]),
        gpu=row["gpu"],
        model=found_model(row["model"]),
        dtype=_dtype(row["precision"]),
        num_devices=num_devices,
        tensor_parallel=degrees["TP"],
        num_stages=degrees["PP"],
        context_parallel=degrees["CP"],
        virtual_stages=degrees["VP"],
        expert_parallel=degrees["EP"],
        batch=_integer(row["global_batch"], "global_batch"),
        micro_batch=_integer(row["micro_batch"], "micro_batch"),
        input_tokens=_integer(row["seq_or_input_len"], "seq_or_input_len"),
        recompute="act_ckpt=True" in parallel,
        lora="LoRA" in row["algo"],
        fully_sharded=sharded or _degree(parallel, "FSDP") > 1,
        unit=row["unit"],
    )


def _degree(parallel: str, name: str) -> int:
    match = re.search(rf"\b{name}=(\d+)", parallel)
    return max(1, int(match.group(1))) if match else 1


def _generation_scenario(row: Mapping[str, str]) -> Scenario:
    match = re.fullmatch(r"TP=(\d+)", row["gen_parallel"].strip())
    if match is None:
        raise Inexpressible("generation: parallelism other than TP")
    dtype = _dtype(row["precision"])
    return Scenario(
        kind="generation",
        family=_family(row["framework"]) + ("" if row["category"] == "generation_batch" else "-throughput"),
        device=_device(row["gpu"]),
        gpu=row["gpu"],
        model=found_model(row["model"]),
        dtype=dtype,
        num_devices=_integer(row["num_gpus"], "num_gpus"),
        tensor_parallel=int(match.group(1)),
        batch=_integer(row["global_batch"], "global_batch") if row["global_batch"].strip() else 0,
        input_tokens=_integer(row["seq_or_input_len"], "seq_or_input_len"),
        output_tokens=_integer(row["output_len"], "output_len"),
        unit=row["unit"],
    )


def _rl_scenario(row: Mapping[str, str]) -> Scenario:
    """Read a NeMo-RL row, as ``[TP,CP,EP,PP,VPP]=[1,1,8,1,n/a]``, ``[TP,PP]=[2,1]``, ``gen 2048 / train 512``."""
    train = [text.strip() for text in row["train_parallel"].rpartition("=[")[2].strip("]").split(",")]
    generate = re.fullmatch(r"\[TP,PP\]=\[(\d+),(\d+)\]", row["gen_parallel"].strip())
    sizes = re.fullmatch(r"gen (\d+) / train (\d+)", row["global_batch"].strip())
    if generate is None or sizes is None or len(train) < 5 or not all(text.isdigit() for text in train[:4]):
        raise Inexpressible("rl_step: parallelism or batch not stated as NeMo-RL does")
    degrees = [int(text) for text in (train if len(train) == 5 else [*train[:3], train[-2]])[:4]]
    asynchronous = "" if row["sync_mode"] == "On policy" else "-async"
    return Scenario(
        kind="rl_step",
        family=_family(row["framework"]) + asynchronous,
        device=_device(row["gpu"]),
        gpu=row["gpu"],
        model=found_model(row["model"]),
        dtype=_dtype(row["precision"]),
        num_devices=_integer(row["num_gpus"], "num_gpus"),
        tensor_parallel=degrees[0],
        context_parallel=degrees[1],
        expert_parallel=degrees[2],
        num_stages=degrees[3],
        generate_devices=int(generate.group(1)) * int(generate.group(2)),
        batch=int(sizes.group(1)),
        train_batch=int(sizes.group(2)),
        input_tokens=_integer(row["mean_seq_len"], "mean_seq_len"),
        output_tokens=_integer(row["seq_or_input_len"], "seq_or_input_len"),
        unit=row["unit"],
    )


def _family(framework: str) -> str:
    return re.split(r"[ /]", framework.strip())[0].lower()


def _device(gpu: str) -> DeviceType:
    try:
        return device_of(read_shipped("names.yaml")["end_to_end_devices"].get(gpu, gpu))
    except SpecError as error:
        raise Inexpressible(f"unknown GPU {gpu}") from error


def found_model(name: str) -> Model:
    """Return the model of a name in a published table; `Inexpressible` if the catalogue has no such model."""
    known = read_shipped("names.yaml")["models"].get(name, name)
    return _catalogue_model(name, tuple(sorted(known.items())) if isinstance(known, Mapping) else str(known))


@cache
def _catalogue_model(name: str, known: str | tuple[tuple[str, int], ...]) -> Model:
    try:
        if isinstance(known, str):
            return find_model(known)
        shape = dict(known)
        config = {"model_type": "gpt2", "n_embd": shape["hidden"], "n_layer": shape["layers"], "n_head": shape["heads"]}
        return find_model({"name": name, "config": {**config, "vocab_size": 50368, "n_positions": 2048}})
    except SpecError as error:
        raise Inexpressible(f"model {name} is not in the catalogue") from error


def _dtype(precision: str) -> str:
    text = precision.lower()
    if "fp4" in text:
        raise Inexpressible(f"precision {precision}: no operator data")
    return "fp8" if "fp8" in text else "bf16"


def _integer(text: str, name: str) -> int:
    try:
        return int(float(text))
    except ValueError as error:
        raise Inexpressible(f"{name} is not stated as a number") from error


def value_of(scenario: Scenario, seconds: float) -> float:
    """Seconds in the unit of the row: s, tok/s or tok/s/gpu."""
    return scenario_tokens(scenario) / seconds if scenario.unit != "s" else seconds


def seconds_measured(scenario: Scenario, value: float) -> float:
    """Inverse of `value_of`."""
    return scenario_tokens(scenario) / value if scenario.unit != "s" else value


def scenario_tokens(scenario: Scenario) -> float:
    """Tokens that a rate counts: trained or generated ones, per GPU where the unit says so.

    TensorRT-LLM 0.6.1 heads its A100 column "out tok/s", of which the tables note that rows may be per GPU; from 0.8.0
    on the page itself says "out tok/s/GPU" above like figures.
    """
    tokens = max(scenario.batch, 1) * (scenario.output_tokens or scenario.input_tokens)
    return tokens / scenario.num_devices if "/gpu" in scenario.unit or "per GPU" in scenario.unit else float(tokens)
