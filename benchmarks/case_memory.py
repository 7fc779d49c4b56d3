"""The questions about memory that a case may ask; see `benchmarks.case_asks` for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from benchmarks.case_asks import ASKS, Answer, Given, device_of
from hetrl.errors import Problem, SpecError
from hetrl.spec.job import Precision
from hetrl.spec.model_source import find_model
from hetrl.workload import setups
from hetrl.workload.memory import kv_bytes_per_token
from hetrl.workload.setup_remedies import remedies
from hetrl.workload.setups import OFFLOADABLE, EngineSetup, Setup, SetupMemory, TrainSetup, setup_memory

GIB = 2**30


def _checked(section: str, values: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    unknown = [key for key in values if key not in known]
    if unknown:
        raise SpecError(
            [
                Problem(
                    path=f"{section}.{key}",
                    message="unknown key",
                    found=key,
                    valid=", ".join(sorted(known)),
                    rule="UNKNOWN_KEY",
                )
                for key in unknown
            ]
        )
    return dict(values)


def setup_of(given: Given) -> Setup:
    """Return the setup that a case describes; see docs/cases.md for the keys."""
    names = {
        "model",
        "device",
        "devices_per_node",
        "host_ram_gb",
        "host_other_gb",
        "critic",
        "frozen",
        "frozen_offloaded",
        "train",
        "engine",
        "colocated",
        "responses_held",
        "response_tokens",
    }
    values = _checked(
        "given", {key: value for key, value in given.items() if key not in ("compare", "scale_devices")}, names
    )
    train = engine = None
    if values.get("train") is not None:
        options = _checked(
            "train",
            values["train"],
            {field.name for field in fields(TrainSetup)} | {"lora_rank", "gradient_dtype", "dtype"},
        )
        precision = Precision(
            dtype=options.pop("dtype", "bf16"),
            gradient_dtype=options.pop("gradient_dtype", "bf16"),
            lora_rank=options.pop("lora_rank", 0),
        )
        offload = options.pop("offload", ())
        chosen = frozenset(OFFLOADABLE) if offload == "all" else frozenset(offload)
        options["layers_per_stage"] = tuple(options.get("layers_per_stage", ()))
        train = TrainSetup(**options, precision=precision, offload=chosen)
    if values.get("engine") is not None:
        options = _checked("engine", values["engine"], {field.name for field in fields(EngineSetup)})
        options["layers_per_stage"] = tuple(options.get("layers_per_stage", ()))
        engine = EngineSetup(**options)
    return Setup(
        model=find_model(values["model"]),
        device=device_of(values["device"]),
        devices_per_node=values.get("devices_per_node", 8),
        host_ram_bytes=values["host_ram_gb"] * 1e9 if "host_ram_gb" in values else None,
        host_other_bytes=values.get("host_other_gb", 0) * 1e9,
        critic=find_model(values["critic"], head="scalar") if "critic" in values else None,
        frozen=tuple(find_model(name) for name in values.get("frozen", ())),
        frozen_offloaded=values.get("frozen_offloaded", True),
        train=train,
        engine=engine,
        colocated=values.get("colocated", True),
        responses_held=values.get("responses_held", 0),
        response_tokens=values.get("response_tokens", 0),
    )


def figures(memory: SetupMemory) -> dict[str, Any]:
    """Return the values of a memory answer, sizes in GiB on the device and GB on the host."""
    values: dict[str, Any] = {
        "peak_gib": memory.peak_bytes / GIB,
        "limit_gib": memory.limit_bytes / GIB,
        "peak_phase": memory.peak_phase,
        "dominant_term": memory.dominant_term,
        "engine_reserved_gib": memory.engine_reserved_bytes / GIB,
        "kv_tokens": memory.kv_tokens,
        "host_gb": memory.host_bytes / 1e9,
    }
    for phase, terms in memory.phases.items():
        values[f"{phase}_gib"] = sum(terms.values()) / GIB
        values |= {f"{phase}.{term}_gib": size / GIB for term, size in terms.items()}
    return values | {f"host.{term}_gb": size / 1e9 for term, size in memory.host.items()}


def memory(given: Given) -> Answer:
    """Does a setup fit, what does it need, and what would help?"""
    setup = setup_of(given)
    made = setup_memory(setup)
    values = figures(made)
    if "scale_devices" in given and setup.train is not None:
        counts = given["scale_devices"]
        peaks = [
            setup_memory(replace(setup, train=replace(setup.train, num_devices=count))).phases["forward_backward"]
            for count in counts
        ]
        totals = [sum(terms.values()) for terms in peaks]
        values["never_rises_with_devices"] = all(later <= earlier + 1 for earlier, later in pairwise(totals))
    if "compare" in given:
        other = setup_memory(
            setup_of({**{key: value for key, value in given.items() if key != "compare"}, **given["compare"]})
        )
        values |= {
            f"ratio.{key}": figures(other)[key] / value
            for key, value in values.items()
            if isinstance(value, float) and value and isinstance(figures(other).get(key), float)
        }
        values["compared_verdict"] = other.verdict
    helps = remedies(setup)
    rules = []
    if made.verdict == setups.DOES_NOT_FIT:
        over_host = made.host_limit_bytes is not None and made.host_bytes > made.host_limit_bytes
        only_host = over_host and made.peak_bytes <= made.limit_bytes and not made.problems
        rules = ["HOST_RAM" if only_host else "DEVICE_MEMORY"]
    return Answer(
        verdict=made.verdict,
        rules=tuple(rules),
        values=values,
        text="\n".join([*made.problems, *(f"would help: {text}" for text in helps)]),
    )


def kv_cache(given: Given) -> Answer:
    """How many tokens fit a KV pool, and how large is a pool for some tokens?"""
    model = find_model(given["model"])
    split = given.get("layers_per_stage") or [model.num_layers]
    tensor = given.get("tensor", 1)
    element = given.get("bytes_per_element", 2)
    starts = [sum(split[:index]) for index in range(len(split))]
    each = [
        kv_bytes_per_token(
            model, first_layer=first, num_layers=count, tensor_parallel=tensor, bytes_per_element=element
        )
        for first, count in zip(starts, split, strict=True)
    ]
    values: dict[str, Any] = {"bytes_per_token": sum(each), "stage_bytes_per_token": each}
    verdict = "accept"
    if "tokens" in given:
        values["stage_gib"] = [size * given["tokens"] / GIB for size in each]
        values["gib"] = sum(each) * given["tokens"] / GIB
    if "pool_gib" in given:
        pools = given["pool_gib"] if isinstance(given["pool_gib"], list) else [given["pool_gib"]] * len(each)
        values["stage_tokens"] = [int(pool * GIB / size) for pool, size in zip(pools, each, strict=True)]
        values["max_tokens"] = min(values["stage_tokens"])
        if "tokens" in given:
            verdict = "fits" if values["max_tokens"] >= given["tokens"] else "does_not_fit"
    return Answer(verdict=verdict, values=values)


ASKS["memory"] = memory
ASKS["kv_cache"] = kv_cache
