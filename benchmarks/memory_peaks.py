"""Peak memory of real workers against the predicted bound: ``python -m benchmarks.memory_peaks [--json FILE]``.

Six settings run on this machine's CPU, each in a process of its own: the train, score and rollout workers of the
runtime with random Llama models. The fixed overhead is measured once per kind of worker, on one with an almost empty
model. The bound is that overhead plus the terms of `hetrl.workload` (eager PyTorch, fp32).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetrl.spec.model import Model

ROOT = Path(__file__).resolve().parents[1]
ALLOWED_ABOVE = 1.25  # the bound may be this many times the peak
ALLOWED_OVERHEAD = 0.30  # and the overhead this share of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One worker, its model's shape and its batch."""

    name: str
    kind: str  # train, score or generate
    hidden_size: int
    num_layers: int
    vocab_size: int
    micro_batch_size: int = 1
    tokens: int = 256
    num_sequences: int = 2
    kv_cache_bytes: int = 0

    def config(self) -> dict[str, Any]:
        """Return the model's config."""
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.hidden_size // 64,
            "num_key_value_heads": self.hidden_size // 128,
            "intermediate_size": self.hidden_size * 8 // 3 // 64 * 64,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        }


SETTINGS = (
    Setting(name="train: states dominate", kind="train", hidden_size=768, num_layers=12, vocab_size=8192, tokens=64),
    Setting(
        name="train: activations dominate",
        kind="train",
        hidden_size=512,
        num_layers=8,
        vocab_size=2048,
        micro_batch_size=8,
        tokens=768,
        num_sequences=8,
    ),
    Setting(
        name="train: logits dominate",
        kind="train",
        hidden_size=256,
        num_layers=2,
        vocab_size=48000,
        micro_batch_size=8,
        tokens=512,
        num_sequences=8,
    ),
    Setting(name="score: weights dominate", kind="score", hidden_size=1280, num_layers=20, vocab_size=8192, tokens=128),
    Setting(
        name="score: logits dominate",
        kind="score",
        hidden_size=256,
        num_layers=2,
        vocab_size=48000,
        micro_batch_size=16,
        tokens=512,
        num_sequences=16,
    ),
    Setting(
        name="generate: weights and KV pool",
        kind="generate",
        hidden_size=1280,
        num_layers=24,
        vocab_size=8192,
        tokens=256,
        num_sequences=8,
        kv_cache_bytes=3 * 2**30,
    ),
)


EMPTY = {
    "hidden_size": 128,
    "num_layers": 1,
    "vocab_size": 256,
    "tokens": 32,
    "num_sequences": 2,
    "kv_cache_bytes": 2**26,
}

# --- the worker's side ---


def _sequences(setting: Setting) -> list[Any]:
    import numpy as np

    from hetrl.runtime.sequences import SampledSequence

    rng = np.random.default_rng(0)
    half = setting.tokens // 2
    return [
        SampledSequence(
            prompt_index=index,
            prompt_tokens=rng.integers(0, setting.vocab_size, half),
            response_tokens=rng.integers(0, setting.vocab_size, setting.tokens - half),
            engine_log_probs=np.zeros(setting.tokens - half, dtype=np.float32),
            text="",
        )
        for index in range(setting.num_sequences)
    ]


def run_worker(setting: Setting, folder: str) -> dict[str, int]:
    """Run one worker in this process; return the peak of each phase in bytes."""
    if setting.kind == "train":
        from hetrl.runtime.sequences import TrainSequence
        from hetrl.runtime.train import TrainSettings, TrainWorker

        trainer = TrainWorker(0, model_path=folder, dtype="float32", replica=0, num_replicas=1)
        trainer.join_replicas("127.0.0.1", trainer.open_store("127.0.0.1"))
        trainer.reset(1e-4)
        sequences = [
            TrainSequence(sequence=each, advantage=1.0, reference_log_probs=None) for each in _sequences(setting)
        ]
        settings = TrainSettings(
            num_epochs=2,
            num_mini_batches=1,
            micro_batch_size=setting.micro_batch_size,
            responses_per_prompt=1,
            temperature=1.0,
            clip_ratio=0.2,
            kl_coefficient=0.0,
        )
        trainer.train(sequences, settings)
        timings = trainer.take_timings()
        trainer.close()
    elif setting.kind == "score":
        from hetrl.runtime.score import ScoreWorker

        scorer = ScoreWorker(0, model_path=folder, dtype="float32")
        scorer.log_probs(_sequences(setting), temperature=1.0, micro_batch_size=setting.micro_batch_size)
        timings = scorer.take_timings()
    else:
        from hetrl.runtime.rollout import RolloutWorker
        from hetrl.runtime.sequences import Prompt

        engine = RolloutWorker(
            0,
            model_path=folder,
            dtype="float32",
            max_model_tokens=setting.tokens,
            max_num_sequences=setting.num_sequences,
            kv_cache_bytes=setting.kv_cache_bytes,
        )
        prompts = [Prompt(index=index, text="1 2 3") for index in range(setting.num_sequences)]
        engine.generate(prompts, num_responses=1, max_response_tokens=setting.tokens // 2, temperature=1.0, seed=0)
        timings = engine.take_timings()
        engine.close()
    peaks: dict[str, int] = {}
    for timing in timings:
        peaks[timing.phase] = max(peaks.get(timing.phase, 0), timing.peak_bytes)
    return peaks


# --- the side that predicts and compares ---


def make_folder(setting: Setting, folder: Path) -> None:
    """Write a random model of the setting's shape and a tokenizer to ``folder``."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    torch.manual_seed(0)
    logging.disable_progress_bar()
    LlamaForCausalLM(LlamaConfig(**setting.config(), dtype="float32")).float().save_pretrained(folder)
    words = {word: number for number, word in enumerate(["<s>", "</s>", *map(str, range(10))])}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def predicted_terms(setting: Setting) -> dict[str, float]:
    """Return the predicted terms of the setting's fullest moment, overheads left out."""
    from hetrl.spec.hf_config import model_from_config
    from hetrl.workload.memory import ALLOCATOR_SHARE, ENGINE_ALLOCATOR_SHARE

    model = model_from_config(setting.config(), name=setting.name)
    terms = _terms(setting, model)
    share = ENGINE_ALLOCATOR_SHARE if setting.kind == "generate" else ALLOCATOR_SHARE
    return {**terms, "allocator": share * sum(terms.values())}


def _terms(setting: Setting, model: Model) -> dict[str, float]:
    from hetrl.spec.job import Precision
    from hetrl.workload.memory import CPU_ALLOWANCES, scoring_activation_bytes
    from hetrl.workload.setups import TrainSetup, engine_activation_bytes, train_terms

    if setting.kind == "train":
        setup = TrainSetup(
            micro_batch_size=setting.micro_batch_size,
            tokens=setting.tokens,
            recompute=False,
            eager=True,
            precision=Precision(dtype="fp32", gradient_dtype="fp32"),
        )
        moments, _, _ = train_terms(model, setup, "cpu")
        terms = max(moments.values(), key=lambda each: sum(each.values()))
        return {term: num_bytes for term, num_bytes in terms.items() if term not in ("process", "communication")}
    weights = 4.0 * model.num_parameters
    if setting.kind == "score":
        activations = scoring_activation_bytes(
            model,
            tensor_parallel=1,
            micro_batch_size=setting.micro_batch_size,
            tokens=setting.tokens,
            last_stage=True,
            bytes_per_element=4,
        )
        return {"weights": weights, "activations": activations * (1 + CPU_ALLOWANCES.fragmentation)}
    activations = 2 * engine_activation_bytes(model, 1, setting.num_sequences * setting.tokens)  # 4 bytes an element
    return {"weights": weights, "kv_cache": float(setting.kv_cache_bytes), "activations": activations}


def child(arguments: Sequence[str]) -> dict[str, int]:
    """Run this file as a worker in a fresh process; return what it prints."""
    from hetrl.runtime.worker import ENVIRONMENT

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory_peaks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"worker {arguments} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(lines[-1]))


def peaks_of(setting: Setting) -> dict[str, int]:
    """Return the peak of each phase of a worker that runs the setting."""
    with tempfile.TemporaryDirectory() as folder:
        make_folder(setting, Path(folder))
        return child(["--worker", json.dumps(asdict(setting)), "--folder", folder])


def compare(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Run every setting; yield its peak, its bound and the parts of both."""
    chosen = [setting for setting in SETTINGS if not names or setting.name in names]
    empty = [Setting(name="empty", kind=kind, **EMPTY) for kind in sorted({setting.kind for setting in chosen})]
    overhead = {setting.kind: max(peaks_of(setting).values()) for setting in empty}
    for setting in chosen:
        peaks = peaks_of(setting)
        terms = predicted_terms(setting)
        bound = overhead[setting.kind] + sum(terms.values())
        peak = max(peaks.values())
        yield (
            {
                "setting": setting.name,
                "peak_bytes": peak,
                "bound_bytes": bound,
                "ratio": bound / peak,
                "overhead_share": overhead[setting.kind] / peak,
                "within": peak <= bound <= ALLOWED_ABOVE * peak and overhead[setting.kind] <= ALLOWED_OVERHEAD * peak,
                "phases": peaks,
                "terms": terms,
            }
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Compare all settings and print a table; exit code 1 if a bound is broken or too loose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="run this setting only (repeatable)"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        print(json.dumps(run_worker(Setting(**json.loads(args.worker)), args.folder)))
        return 0
    rows = []
    print(f"{'setting':<32} {'peak GiB':>9} {'bound GiB':>10} {'bound/peak':>11} {'overhead':>9}  verdict")
    for row in compare(args.only):
        rows.append(row)
        sizes = f"{row['peak_bytes'] / 2**30:>9.2f} {row['bound_bytes'] / 2**30:>10.2f} {row['ratio']:>11.2f}"
        print(
            f"{row['setting']:<32} {sizes} {row['overhead_share']:>9.0%}  {'within' if row['within'] else 'OUTSIDE'}",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
