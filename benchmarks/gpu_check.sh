#!/usr/bin/env bash
# Every check that needs a GPU, in a few minutes; prints tables and keeps the figures under OUT.
# Where there is no GPU it says so and fails: nothing here has a CPU stand-in.
#
#   bash benchmarks/gpu_check.sh [OUT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:-runs/gpu_check}"
python="${PYTHON:-python3}"
export PYTHONPATH="$PWD:$PWD/kernels:$PWD/profiler${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"

"$python" - <<'PY' || { echo "no GPU that torch can use: nothing was checked" >&2; exit 4; }
import sys, torch
sys.exit(0 if torch.cuda.is_available() else 1)
PY
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv

echo "== quick profile: operators of this GPU"
"$python" -m hetrl.tools.profile --quick --device gpu --out "$out/profile.jsonl"

echo "== copies from and to the host, optimizer steps, and with several GPUs sends and collectives over NCCL"
"$python" -m hetrl.tools.profile --full --device gpu --stage copies --stage optimizer --stage links --out "$out/profile.jsonl"

echo "== fit, with its cross-validated error"
"$python" -m hetrl.tools.fit --measurements "$out/profile.jsonl" --out "$out/model.json"

echo "== 20 shapes that the profile does not contain: predicted and measured"
"$python" -m benchmarks.unseen_operators --profile "$out/profile.jsonl" --json "$out/unseen.json" || failed="unseen operators"

echo "== peak memory of real workers against the predicted bound"
"$python" -m benchmarks.memory_peaks_gpu --json "$out/memory.json" || failed="${failed:+$failed, }peak memory"

if [ -n "${failed:-}" ]; then
    echo "FAILED: $failed" >&2
    exit 1
fi
echo "all GPU checks passed; figures in $out"
