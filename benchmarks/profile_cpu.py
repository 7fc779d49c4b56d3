"""How well a quick profile of this machine predicts what it has not measured.

A quick profile of one CPU core, with two tiny models; then 20 operator shapes, training steps and vLLM rollouts that
the profile does not contain, measured and predicted. What other programs take of the core meanwhile is no matter of the
model: the limits hold for CPU seconds, at the slow-down of the core that the profile found (see hetrl_profiler.timing).
Beside them stands the error in the wall seconds of each measurement, which says the same on a quiet machine.

python -m benchmarks.profile_cpu [--json FILE] [--out DIR] [--core N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.cost.work import DIMENSIONS
from hetrl.files import write_json_atomically
from hetrl.measure import Measurement, load_measurements
from hetrl.spec.job import Precision

DEVICE = "cpu-core"
MODELS = {
    "tiny-128x4": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    "tiny-256x6": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4},
}
UNSEEN_SHAPES = {"gemm": 8, "attention_prefill": 5, "attention_decode": 5, "memory": 2}
UNSEEN_SEED = 99
TRAIN_STEPS = ((24, 72, 6), (40, 40, 20), (12, 200, 4))
ROLLOUTS = ((6, 24, 24), (12, 16, 20), (3, 80, 40))
POINT_SECONDS = {"operator": 0.1, "phase": 3.0}
LIMITS = {"operators": 0.12, "train_step": 0.15, "rollout": 0.15}


def make_model(folder: Path, sizes: Mapping[str, int]) -> None:
    """Write a random Llama and its byte-level tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "demo"))
    from make_model import make_tokenizer

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, intermediate_size=3 * sizes["hidden_size"], head_dim=32, max_position_embeddings=1024,
        tie_word_embeddings=False, dtype="float32", pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure(core: int | None, out: Path, model: Path | None) -> None:
    """Profile, then measure what the profile does not contain: operators if no model is given, else its phases."""
    from hetrl_profiler.device import cpu_core, set_environment

    set_environment()
    device = cpu_core(DEVICE, "fp32", core)
    import numpy as np
    import torch

    from hetrl_profiler.operators import OperandPool
    from hetrl_profiler.points import QUICK, operator_point
    from hetrl_profiler.profile import model_labels, run_operators, run_phases
    from hetrl_profiler.progress import Progress
    from hetrl_profiler.recorder import Recorder
    from hetrl_profiler.shapes import candidates

    torch.set_num_threads(1)
    with Progress(DEVICE, quiet=True) as progress:
        profile, unseen = (Recorder(out / name, device, progress, {}) for name in ("profile.jsonl", "unseen.jsonl"))
        if model is None:
            run_operators(profile, QUICK)
            pool = OperandPool(device, int(QUICK.max_bytes) // 4)
            with torch.inference_mode():
                for operator, number in UNSEEN_SHAPES.items():
                    found = candidates(
                        operator, UNSEEN_SEED, max_flops=QUICK.max_flops, max_bytes=QUICK.max_bytes, dtype_bytes=4
                    )
                    chosen = np.random.default_rng(UNSEEN_SEED).permutation(len(found))[:number]
                    points = [operator_point(operator, found[index], device, pool) for index in chosen]
                    unseen.run(points, point_seconds=POINT_SECONDS["operator"])
            return
        from hetrl_profiler.engine import EnginePhases, Request
        from hetrl_profiler.torch_phases import TorchPhases

        labels, spec = model_labels(model)
        assert spec is not None
        phases = TorchPhases(model, spec, device, labels)
        run_phases(profile, phases.points(), QUICK)
        steps = [phases.point("train_step", *shape) for shape in TRAIN_STEPS]
        unseen.run(steps, point_seconds=POINT_SECONDS["phase"])
        engine = EnginePhases(model, spec, device, 8, labels)
        run_phases(profile, engine.points(), QUICK)
        unseen.run([engine.point(Request(*shape)) for shape in ROLLOUTS], point_seconds=POINT_SECONDS["phase"])
        engine.close()


def in_own_process(core: int | None, out: Path, model: Path | None) -> None:
    """Run `measure` in a fresh process: one engine a process."""
    process = multiprocessing.get_context("spawn").Process(target=measure, args=(core, out, model))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"measuring failed with exit code {process.exitcode}")


def rows_of(profile: Sequence[Measurement], unseen: Sequence[Measurement]) -> list[dict[str, object]]:
    """Every unseen measurement beside its prediction."""
    from hetrl_profiler.composed import predicted_seconds
    from hetrl_profiler.described import device_from_profile
    from hetrl_profiler.model_fit import fit_profile
    from hetrl_profiler.observations import Surroundings, observe

    precision = Precision(dtype="fp32", gradient_dtype="fp32")
    rows: list[dict[str, object]] = []
    slowdown = slowdown_of(profile)
    for name in MODELS:
        own = [each for each in profile if each.labels.get("model", name) == name]
        fitted, operators = fit_profile(own, CostModel.builtin())
        costs = UnitCosts(fitted.model, precision)
        surroundings = Surroundings(devices={DEVICE: device_from_profile(DEVICE, ["fp32"], own)})
        for each in unseen:
            if each.labels.get("model", "") == name:
                parts = [each]
                if each.kind == "train_step":
                    parts = [replace(each, kind=kind) for kind in ("forward_backward", "optimizer_step")]
                predicted = sum(predicted_seconds(part, costs) for part in observe(parts, surroundings))
                rows.append(_row("rollout" if each.kind == "generate" else each.kind, each, predicted, slowdown))
            elif each.kind in DIMENSIONS and name == next(iter(MODELS)):
                model = next(model for model in operators if model.operator == each.kind)
                dims = {dimension: each.amounts[dimension] for dimension in DIMENSIONS[each.kind]}
                rows.append(_row("operators", each, model.predict(**dims).seconds.item(), slowdown))
    return rows


def slowdown_of(profile: Sequence[Measurement]) -> float:
    """Factor from CPU to wall seconds that the profile alone found; predictions are in these wall seconds."""
    return statistics.median(each.measured["slowdown"] for each in profile if "slowdown" in each.measured)


def _row(group: str, measurement: Measurement, predicted: float, slowdown: float) -> dict[str, object]:
    """Compare CPU seconds (at the profile's slow-down), and the wall seconds of the measurement itself."""
    measured = measurement.measured["busy_seconds"] * slowdown
    return {
        "group": group,
        "kind": measurement.kind,
        "model": measurement.labels.get("model", ""),
        "amounts": dict(measurement.amounts),
        "measured_seconds": measured,
        "measured_wall_seconds": measurement.seconds,
        "predicted_seconds": predicted,
        "error": predicted / measured - 1.0,
        "wall_error": predicted / measurement.seconds - 1.0,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Profile, measure, compare; exit code 0 if every group keeps its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--out", type=Path, default=Path("runs/profile_cpu"), help="folder for models and measurements")
    parser.add_argument("--core", type=int, help="CPU core (default: the first)")
    args = parser.parse_args(argv)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    for name, sizes in MODELS.items():
        make_model(args.out / name, sizes)
    for model in (None, *(args.out / name for name in MODELS)):
        print(f"measuring {model.name if model else 'operators'}", flush=True)
        in_own_process(args.core, args.out, model)
    rows = rows_of(*(load_measurements(args.out / name) for name in ("profile.jsonl", "unseen.jsonl")))
    figures = {}
    for row in rows:
        amounts = " ".join(f"{key}={value:g}" for key, value in row["amounts"].items())
        print(
            f"{row['group']:10} {row['kind']:17} {row['model']:11} {1e3 * row['measured_seconds']:9.3f} ms "
            f"{1e3 * row['predicted_seconds']:9.3f} ms {100 * row['error']:+6.1f} %  {amounts}"
        )
    for group, limit in LIMITS.items():
        errors = [abs(row["error"]) for row in rows if row["group"] == group]
        wall = statistics.median(abs(row["wall_error"]) for row in rows if row["group"] == group)
        figures[group] = {
            "num": len(errors), "mdape": statistics.median(errors), "max": max(errors), "limit": limit,
            "mdape_wall": wall,
        }  # fmt: skip
        print(
            f"{group}: {len(errors)} unseen, median error {100 * figures[group]['mdape']:.1f} %, "
            f"largest {100 * figures[group]['max']:.1f} %, limit {100 * limit:.0f} %; "
            f"in wall seconds {100 * wall:.1f} %"
        )
    if args.json is not None:
        write_json_atomically(args.json, {"summary": figures, "rows": rows})
    return 0 if all(each["mdape"] <= each["limit"] for each in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
