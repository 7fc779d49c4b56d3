"""A job file becomes a `Job`: every problem at once, every default recorded.

The guide's form is enough (workflow, cluster_topology, optimizer); everything else has a documented default:
docs/configuration.md lists all keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from hetrl.spec.devices import DTYPES, DeviceType
from hetrl.spec.job import Batch, Job, OptimizerSettings, Precision, RunSettings
from hetrl.spec.load_constraints import (
    constraint_problems,
    price_problems,
    read_constraints,
    solver_problems,
)
from hetrl.spec.load_devices import read_device_types
from hetrl.spec.load_topology import read_topology
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model
from hetrl.spec.section import Report, Section
from hetrl.spec.workflow import ALGORITHMS, Workflow, build_workflow
from hetrl.spec.yaml_text import folder_of, parse_yaml, read_text

JOB_KEYS = ("workflow", "cluster_topology", "optimizer", "batch", "precision", "run", "device_types")
WORKFLOW_KEYS = (
    "algorithm", "actor_model", "critic_model", "reward_model", "reward_models", "reference_model", "online",
    "staleness", "allow_hub",
)  # fmt: skip
SOLVERS = ("hybrid", "ilp")
MIP_SOLVERS = ("cbc", "highs", "gurobi")
EXACT_SEARCH_SECONDS = 300.0
OBJECTIVES = ("step_seconds", "tokens_per_second", "usd_per_step", "usd_per_million_tokens")
OPTIMIZERS = ("adamw", "sgd")
GROUP_ALGORITHMS = ("GRPO", "RLOO")
MAX_PROMPTS = 10**6
MAX_SEQUENCES = 10**7
"""Of a step; the published largest batches have some ten thousand. Shares are searched prompt by prompt."""
_PATH_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def load_job(path_or_text: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
    """Return the job of a YAML file, or of YAML text (anything that contains a line break).

    Parameters
    ----------
    path_or_text
        A path, or the text itself.
    overrides
        Dotted path -> value, e.g. ``{"optimizer.solver": "ilp", "cluster_topology.nodes[1].type": "A100-40GB"}``;
        they replace what the file says before it is checked.

    Raises
    ------
    SpecError
        With every problem found.
    """
    base: Path | None = None
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        text, source = path_or_text, ""
    else:
        file = Path(path_or_text)
        text, source, base = read_text(file, "job file", pipes=True), str(path_or_text), folder_of(file)
    values = parse_yaml(text, source)
    return job_from_values(values, source=source, base=base, overrides=overrides)


def job_from_values(
    values: object, *, source: str = "", base: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Job:
    """Return the job of parsed YAML values; see `load_job`."""
    report = Report()
    for dotted, value in (overrides or {}).items():
        values = _override(values, dotted, value, report)
    report.raise_if_any()
    top = Section(values, "", report, JOB_KEYS)
    if not isinstance(values, dict):
        report.raise_if_any()
    for key in ("workflow", "cluster_topology"):
        if not top.has(key):
            top.missing(key, "a mapping; see configs/rlhf_70b.yaml")
    described = read_device_types(top.raw("device_types"), report)
    topology = read_topology(top.raw("cluster_topology"), described, report, base)
    precision = read_precision(top.raw("precision"), report)
    workflow_section = Section(
        top.raw("workflow"), "workflow", report, WORKFLOW_KEYS, renamed=(("actor", "did you mean 'actor_model'?"),)
    )
    there = top.has("workflow")
    algorithm = workflow_section.text("algorithm", "", choices=ALGORITHMS, required=True) if there else ""
    batch = read_batch(top.raw("batch"), algorithm, report)
    workflow = read_workflow(workflow_section, algorithm, batch, precision, base, report) if there else None
    staleness = workflow_section.count("staleness", 0, minimum=0, maximum=64)
    optimizer = read_optimizer(top.raw("optimizer"), report)
    run = read_run(top.raw("run"), report) if top.has("run") else None
    if topology is not None and workflow is not None:
        check_uses(topology.device_types, precision, workflow, report)
        names = [task.name for task in workflow.tasks]
        report.problems.extend(constraint_problems(optimizer.constraints, names, [node.id for node in topology.nodes]))
        report.problems.extend(price_problems(optimizer, topology))
    report.problems.extend(solver_problems(optimizer))
    report.raise_if_any()
    assert topology is not None and workflow is not None
    return Job(
        workflow=workflow,
        topology=topology,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        run=run,
        staleness=staleness,
        assumed=dict(report.assumed),
        warnings=tuple(report.warnings),
        config=dict(values) if isinstance(values, Mapping) else {},
        source=source,
    )


def _override(values: object, dotted: str, value: object, report: Report) -> object:
    parts: list[str | int] = [int(match[2]) if match[2] else match[1] for match in _PATH_PART.finditer(dotted)]
    if not parts:
        report.problem(dotted, "not a path", dotted, "a dotted path such as optimizer.solver")
        return values

    def put(node: object, rest: list[str | int]) -> object:
        if not rest:
            return value
        head, *tail = rest
        if isinstance(head, int):
            if not isinstance(node, list) or head >= len(node):
                report.problem(dotted, "no such list entry", f"[{head}]")
                return node
            return [put(item, tail) if number == head else item for number, item in enumerate(node)]
        node = {} if node is None else node
        if not isinstance(node, dict):
            report.problem(dotted, "no such key", head)
            return node
        return {**node, head: put(node.get(head), tail)}

    return put(values, parts)


def read_workflow(
    section: Section, algorithm: str, batch: Batch, precision: Precision, base: Path | None, report: Report
) -> Workflow | None:
    """Return the workflow of the ``workflow`` section."""
    before = len(report.problems)
    allow_hub = section.flag("allow_hub", False)
    online = section.flag("online", False) if algorithm == "DPO" else True
    if section.has("online") and algorithm != "DPO":
        report.problem(
            section.at("online"),
            f"only DPO can be offline; {algorithm or 'this algorithm'} always generates",
            section.raw("online"),
            "remove the key",
        )

    def model(key: str, head: str | None = None) -> Model | None:
        return _model(section.raw(key), section.at(key), head)

    def _model(reference: object, path: str, head: str | None) -> Model | None:
        found = report.attempt(None, find_model, reference, path=path, head=head, base=base, allow_hub=allow_hub)
        return None if found is None else replace(found, weight_dtype=precision.dtype)

    if not section.has("actor_model"):
        section.missing("actor_model", "a model name, hub id or directory")
    actor = model("actor_model") if section.has("actor_model") else None
    critic = model("critic_model", "scalar") if section.has("critic_model") else None
    reference = model("reference_model") if section.has("reference_model") else None
    if section.has("reward_model") and section.has("reward_models"):
        report.problem(section.at("reward_models"), "give reward_model or reward_models, not both")
    rewards = [model("reward_model", "scalar")] if section.has("reward_model") else []
    rewards += [
        _model(entry, f"{section.at('reward_models')}[{number}]", "scalar")
        for number, entry in enumerate(section.listing("reward_models"))
    ]
    if not rewards and online and algorithm:
        section.assume("reward_model", "a reward function on the CPU")
    if algorithm and rewards and algorithm == "DPO" and not online:
        report.warnings.append(f"{section.at('reward_model')}: offline DPO uses no reward model; it is ignored")
        rewards = []
    if algorithm == "DPO" and section.has("critic_model"):
        report.problem(section.at("critic_model"), "DPO has no critic", section.raw("critic_model"), "remove the key")
        critic = None
    if len(report.problems) > before or actor is None or not algorithm:
        return None
    return report.attempt(
        None,
        build_workflow,
        algorithm,
        actor=actor,
        reference=reference,
        critic=critic,
        rewards=tuple(reward for reward in rewards if reward is not None),
        responses_per_prompt=batch.responses_per_prompt,
        online=online,
    )


def read_batch(values: object, algorithm: str, report: Report) -> Batch:
    """Return the ``batch`` section."""
    section = Section(
        values,
        "batch",
        report,
        [field.name for field in fields(Batch)],
        renamed=(("train_batch_size", "did you mean 'num_prompts'?"), ("n", "did you mean 'responses_per_prompt'?")),
    )
    default = Batch()
    histogram = _histogram(section)
    longest = max((length for length, _ in histogram), default=0)
    weight = sum(weight for _, weight in histogram)
    mean_default = (
        sum(length * share for length, share in histogram) / weight if weight else default.mean_response_tokens
    )
    batch = Batch(
        num_prompts=section.count("num_prompts", default.num_prompts, maximum=MAX_PROMPTS),
        responses_per_prompt=section.count(
            "responses_per_prompt", 8 if algorithm in GROUP_ALGORITHMS else 1, maximum=65536
        ),
        prompt_tokens=section.count("prompt_tokens", default.prompt_tokens, maximum=2**24),
        mean_response_tokens=section.number("mean_response_tokens", mean_default, minimum=1, maximum=2**24),
        max_response_tokens=section.count("max_response_tokens", longest or default.max_response_tokens, maximum=2**24),
        response_histogram=histogram,
        num_epochs=section.count("num_epochs", default.num_epochs, maximum=1024),
        num_mini_batches=section.count("num_mini_batches", default.num_mini_batches, maximum=65536),
    )
    if batch.mean_response_tokens > batch.max_response_tokens:
        report.problem(
            section.at("mean_response_tokens"),
            f"larger than max_response_tokens ({batch.max_response_tokens})",
            batch.mean_response_tokens,
        )
    if longest > batch.max_response_tokens:
        report.problem(
            section.at("response_histogram"), f"longer than max_response_tokens ({batch.max_response_tokens})", longest
        )
    num_sequences = batch.num_prompts * batch.responses_per_prompt
    if num_sequences > MAX_SEQUENCES:
        report.problem(
            section.at("responses_per_prompt"),
            f"{num_sequences} sequences in a step",
            batch.responses_per_prompt,
            f"num_prompts x responses_per_prompt up to {MAX_SEQUENCES}",
        )
    if batch.num_mini_batches > num_sequences:
        report.problem(
            section.at("num_mini_batches"),
            f"more mini-batches than the {num_sequences} sequences of a step",
            batch.num_mini_batches,
            rule="BATCH_SPLIT",
        )
    return batch


def _histogram(section: Section) -> tuple[tuple[int, float], ...]:
    pairs: list[tuple[int, float]] = []
    for number, entry in enumerate(section.listing("response_histogram")):
        ok = (
            isinstance(entry, list)
            and len(entry) == 2
            and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in entry)
        )
        if not ok or not 1 <= entry[0] <= 2**24 or not 0 < entry[1] < 1e12:  # type: ignore[index]
            section.report.problem(
                f"{section.at('response_histogram')}[{number}]",
                "not a (length, weight) pair",
                entry,
                "[tokens from 1, weight above 0]",
            )
            continue
        pairs.append((int(entry[0]), float(entry[1])))  # type: ignore[index]
    return tuple(pairs)


def read_precision(values: object, report: Report) -> Precision:
    """Return the ``precision`` section."""
    section = Section(values, "precision", report, [field.name for field in fields(Precision)])
    dtype = section.text("dtype", "bf16", choices=("bf16", "fp16", "fp32"))
    return Precision(
        dtype=dtype,
        gradient_dtype=section.text("gradient_dtype", dtype, choices=("bf16", "fp16", "fp32")),
        kv_cache_dtype=section.text("kv_cache_dtype", dtype, choices=tuple(d for d in DTYPES if d != "tf32")),
        optimizer=section.text("optimizer", "adamw", choices=OPTIMIZERS),
        lora_rank=section.count("lora_rank", 0, minimum=0, maximum=65536),
    )


def read_optimizer(values: object, report: Report) -> OptimizerSettings:
    """Return the ``optimizer`` section: how to search."""
    section = Section(values, "optimizer", report, [field.name for field in fields(OptimizerSettings)])
    default = OptimizerSettings()
    solver = section.text("solver", default.solver, choices=SOLVERS)
    exact = solver == "ilp"
    for key in ("mip", "gap"):
        if section.has(key) and not exact:
            report.warnings.append(f"{section.at(key)}: only solver ilp has it; the {solver} solver ignores it")
    seconds = EXACT_SEARCH_SECONDS if exact else default.max_search_seconds
    return OptimizerSettings(
        solver=solver,
        mip=section.text("mip", default.mip, choices=MIP_SOLVERS) if exact or section.has("mip") else default.mip,
        gap=section.number("gap", default.gap, minimum=0, maximum=1) if exact or section.has("gap") else default.gap,
        max_search_seconds=section.number("max_search_seconds", seconds, minimum=0.01, maximum=86400),
        memory_safety_margin=section.number(
            "memory_safety_margin", default.memory_safety_margin, minimum=0, maximum=0.9
        ),
        seed=section.count("seed", default.seed, minimum=0, maximum=2**32 - 1),
        budget=section.count("budget", None, maximum=10**9) if section.has("budget") else None,
        objective=section.text("objective", default.objective, choices=OBJECTIVES),
        executable=section.flag("executable", default.executable),
        constraints=read_constraints(section.raw("constraints"), section.at("constraints"), report),
    )


def read_run(values: object, report: Report) -> RunSettings:
    """Return the ``run`` section; plans need none of it."""
    section = Section(values, "run", report, [field.name for field in fields(RunSettings)])
    default = RunSettings()
    return RunSettings(
        actor_path=section.text("actor_path"),
        prompts=section.text("prompts"),
        reward=section.text("reward"),
        num_steps=section.count("num_steps", default.num_steps),
        learning_rate=section.number("learning_rate", default.learning_rate, minimum=0, maximum=10),
        kl_coefficient=section.number("kl_coefficient", default.kl_coefficient, minimum=0, maximum=100),
        clip_ratio=section.number("clip_ratio", default.clip_ratio, minimum=0, maximum=10),
        temperature=section.number("temperature", default.temperature, minimum=1e-3, maximum=10),
        seed=section.count("seed", default.seed, minimum=0, maximum=2**32 - 1),
        checkpoint_every=section.count("checkpoint_every", default.checkpoint_every, minimum=0),
    )


def check_uses(device_types: tuple[DeviceType, ...], precision: Precision, workflow: Workflow, report: Report) -> None:
    """Report what no device of the fleet can do; warn about devices that the search will not use for everything."""
    unable = [device.name for device in device_types if not device.supports(precision.dtype)]
    if len(unable) == len(device_types):
        report.problem(
            "precision.dtype",
            f"no device of the fleet computes in {precision.dtype}",
            precision.dtype,
            "another dtype or other devices",
            rule="DTYPE_SUPPORT",
        )
    elif unable:
        report.warnings.append(
            f"precision.dtype: {', '.join(unable)} cannot compute in {precision.dtype} and will not train or score"
        )
    forward = [device.name for device in device_types if not device.can_train]
    if len(forward) == len(device_types):
        report.problem(
            "cluster_topology.nodes",
            "no device of the fleet can train",
            ", ".join(forward),
            "at least one device type without can_train: false",
            rule="TRAIN_SUPPORT",
        )
    if precision.kv_cache_dtype == "fp8" and workflow.online:
        old = [device.name for device in device_types if not device.supports("fp8")]
        if len(old) == len(device_types):
            report.problem(
                "precision.kv_cache_dtype",
                "no device of the fleet can hold an fp8 cache",
                "fp8",
                f"{precision.dtype}, or other devices",
                rule="DTYPE_SUPPORT",
            )
        elif old:
            names = ", ".join(old)
            report.warnings.append(f"precision.kv_cache_dtype: {names} cannot hold an fp8 cache and will not generate")
