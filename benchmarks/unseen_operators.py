"""20 operator shapes that a profile of this device does not contain: predicted by its fit, then measured.

python -m benchmarks.unseen_operators --profile FILE [--device gpu|cpu] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.profile_cpu import LIMITS, POINT_SECONDS, UNSEEN_SEED, UNSEEN_SHAPES, slowdown_of
from hetrl.cost.model import CostModel
from hetrl.cost.work import DIMENSIONS
from hetrl.files import write_json_atomically
from hetrl.measure import Measurement, load_measurements
from hetrl.spec.devices import DTYPE_BYTES


def measure(device_name: str, on_gpu: bool) -> list[Measurement]:
    """Measure the unseen shapes on this machine's first GPU, or on one core."""
    from hetrl_profiler.device import cpu_core, gpu, set_environment

    set_environment()
    import numpy as np
    import torch

    from hetrl_profiler.operators import OperandPool
    from hetrl_profiler.points import QUICK, operator_point, scaled
    from hetrl_profiler.progress import Progress
    from hetrl_profiler.recorder import Recorder
    from hetrl_profiler.shapes import candidates

    torch.set_num_threads(1)
    device = gpu(0, device_name) if on_gpu else cpu_core(device_name)
    budget = scaled(QUICK, device)
    pool = OperandPool(device, int(budget.max_bytes) // DTYPE_BYTES[device.dtype])
    with tempfile.TemporaryDirectory() as folder, Progress(device.name, quiet=True) as progress:
        recorder = Recorder(Path(folder) / "unseen.jsonl", device, progress, {})
        with torch.inference_mode():
            for operator, number in UNSEEN_SHAPES.items():
                found = candidates(
                    operator, UNSEEN_SEED, max_flops=budget.max_flops, max_bytes=budget.max_bytes,
                    dtype_bytes=DTYPE_BYTES[device.dtype],
                )  # fmt: skip
                chosen = np.random.default_rng(UNSEEN_SEED).permutation(len(found))[:number]
                points = [operator_point(operator, found[index], device, pool) for index in chosen]
                recorder.run(points, point_seconds=POINT_SECONDS["operator"], single_kernels=True)
        return recorder.stored


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, measure, compare; exit code 0 if the median error keeps the limit."""
    from hetrl_profiler.model_fit import fit_profile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, required=True, help="what `hetrl profile` measured on this device")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args(argv)
    profile = load_measurements(args.profile)
    names = sorted({each.device_type for each in profile if each.kind == "gemm"})
    if len(names) != 1:
        sys.exit(f"the profile must hold one device, not {', '.join(names) or 'none'}")
    _, models = fit_profile(profile, CostModel.builtin())
    slowdown = slowdown_of(profile)
    rows = []
    for each in measure(names[0], args.device == "gpu"):
        model = next(m for m in models if m.operator == each.kind and m.dtype == each.labels["dtype"])
        dims = {dimension: each.amounts[dimension] for dimension in DIMENSIONS[each.kind]}
        predicted = model.predict(**dims).seconds.item()
        measured = each.measured["busy_seconds"] * slowdown
        rows.append({"operator": each.kind, **dims, "measured_seconds": measured, "predicted_seconds": predicted})
        shape = " ".join(f"{key}={value:g}" for key, value in dims.items())
        print(
            f"{each.kind:17} {1e6 * measured:10.1f} us measured {1e6 * predicted:10.1f} us predicted "
            f"{100 * (predicted / measured - 1):+6.1f} %  {shape}"
        )
    median = statistics.median(abs(row["predicted_seconds"] / row["measured_seconds"] - 1) for row in rows)
    limit = LIMITS["operators"]
    print(f"{names[0]}: {len(rows)} unseen shapes, median error {100 * median:.1f} %, limit {100 * limit:.0f} %")
    if args.json is not None:
        write_json_atomically(args.json, {"mdape": median, "limit": limit, "rows": rows})
    return 0 if median <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
