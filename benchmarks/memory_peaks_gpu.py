"""Peak memory of training and scoring on a GPU against the predicted bound, by torch's own count of allocated bytes.

The settings and the predicted terms are those of `benchmarks.memory_peaks`; the model is trained and scored in fp32
with the same loss as the runtime's, in this process. The runtime itself does not run on GPUs yet, so its engine is
left out.

python -m benchmarks.memory_peaks_gpu [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory_peaks import ALLOWED_ABOVE, EMPTY, SETTINGS, Setting, predicted_terms
from hetrl.errors import EXIT_OK, EXIT_RUNTIME
from hetrl.files import write_json_atomically


def peak_bytes(setting: Setting) -> int:
    """Return the most bytes that torch had allocated on the GPU while it ran the setting."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = LlamaForCausalLM(LlamaConfig(**setting.config(), dtype="float32")).float().cuda()
    tokens = torch.randint(0, setting.vocab_size, (setting.micro_batch_size, setting.tokens), device="cuda")

    def log_probs() -> torch.Tensor:
        logits = model(tokens, use_cache=False).logits[:, :-1].float()
        return torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None])[..., 0]

    if setting.kind == "train":
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            (-log_probs().mean()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    else:
        with torch.no_grad():
            log_probs()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print a table; exit code 4 without a GPU, 1 if a bound is broken or too loose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("no GPU that torch can use: nothing was measured", file=sys.stderr)
        return EXIT_RUNTIME
    rows: list[dict[str, Any]] = []
    print(f"{'setting':<32} {'peak GiB':>9} {'bound GiB':>10} {'bound/peak':>11}")
    overhead = {kind: peak_bytes(Setting(name="empty", kind=kind, **EMPTY)) for kind in ("train", "score")}
    for setting in SETTINGS:
        if setting.kind not in overhead:
            continue
        peak = peak_bytes(setting)
        bound = overhead[setting.kind] + sum(predicted_terms(setting).values())
        within = peak <= bound <= ALLOWED_ABOVE * peak
        rows.append({"setting": setting.name, "peak_bytes": peak, "bound_bytes": bound, "within": within})
        print(f"{setting.name:<32} {peak / 2**30:>9.2f} {bound / 2**30:>10.2f} {bound / peak:>11.2f}", flush=True)
    if args.json is not None:
        write_json_atomically(args.json, rows)
    return EXIT_OK if all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
