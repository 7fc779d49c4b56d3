"""List or describe the models that hetrl knows, or a Hugging Face config of your own.

NAME is a catalogue name, a hub id or a directory with a config.json. Code of a repository is never run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from hetrl.errors import EXIT_OK
from hetrl.spec.model import Model
from hetrl.spec.model_source import find_model, known_models
from hetrl.spec.rules import padded_vocab, valid_tensor_degrees
from hetrl.tools.cli import run_command
from hetrl.units import GIB, format_bytes
from hetrl.workload.flops import forward_flops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl models``."""
    parser.add_argument("name", nargs="?", help="describe one model")
    parser.add_argument("--scalar-head", action="store_true", help="count it as a reward model or critic")
    parser.add_argument(
        "--allow-hub", action="store_true", help="look an unknown owner/name up on the Hugging Face hub"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def as_dict(model: Model) -> dict[str, object]:
    """Return the counts of a model that follow from its config."""
    kinds = list(dict.fromkeys(model.layers))
    return {
        "name": model.name,
        "architecture": model.architecture,
        "head": model.head,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": padded_vocab(model.vocab_size, 1),
        "max_position": model.max_position,
        "tied_embeddings": model.tied_embeddings,
        "num_heads": model.num_heads,
        "num_kv_heads": list(model.kv_head_counts),
        "head_dims": sorted({layer.head_dim for layer in kinds}),
        "num_experts": sorted({layer.num_experts for layer in kinds if layer.num_experts}),
        "windows": sorted({layer.window for layer in kinds if layer.window is not None}),
        "weights_bf16_bytes": 2 * model.num_parameters,
        "kv_bytes_per_token_bf16": model.kv_bytes_per_token_bf16,
        "forward_flops_per_token_at_1024": forward_flops(model, num_sequences=1, new_tokens=1024) / 1024,
        "valid_tensor_degrees": list(valid_tensor_degrees(model, 64)),
        "quantization": model.quantization,
        "quantization_block": model.quantization_block,
        "source": model.source,
        "notes": list(model.notes),
    }


LABELS = {
    "num_active_parameters": "active parameters per token",
    "valid_tensor_degrees": "tensor degrees up to 64",
    "num_kv_heads": "KV heads",
    "padded_vocab_size": "padded vocabulary",
    "vocab_size": "vocabulary",
    "max_position": "longest sequence, tokens",
    "windows": "attention windows, tokens",
    "weights_bf16_bytes": "weights in bf16",
    "kv_bytes_per_token_bf16": "KV cache per token in bf16",
    "forward_flops_per_token_at_1024": "forward pass at 1,024 tokens",
}
"""What people call a key; others are their key in words."""


def described_lines(described: Mapping[str, object]) -> list[str]:
    """Return what is known of a model for people: labels, and units where a figure has one."""
    lines = []
    for key, value in described.items():
        label = LABELS.get(key, key.removeprefix("num_").replace("_", " "))
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif key == "weights_bf16_bytes":
            shown = format_bytes(float(str(value)))
        elif key == "kv_bytes_per_token_bf16":
            shown = f"{value:,} bytes"
        elif key == "forward_flops_per_token_at_1024":
            shown = f"{float(str(value)) / 1e9:.4g} GFLOP per token"
        elif isinstance(value, (list, tuple)):
            shown = ", ".join(map(str, value)) or "none"
        else:
            shown = f"{value:,}" if isinstance(value, int) else str(value or "none")
        lines.append(f"{label:<32} {shown}")
    return lines


def run(args: argparse.Namespace) -> int:
    """Print the catalogue or one model."""
    head = "scalar" if args.scalar_head else None
    if args.name:
        described = as_dict(find_model(args.name, path="NAME", head=head, allow_hub=args.allow_hub))
        if args.json:
            print(json.dumps(described, indent=2))
        else:
            print("\n".join(described_lines(described)))
        return EXIT_OK
    models = [find_model(name, head=head) for name in known_models()]
    if args.json:
        print(json.dumps([as_dict(model) for model in models], indent=2))
        return EXIT_OK
    columns = f"{'parameters':>16} {'active':>16} {'bf16 GiB':>9} {'KV B/token':>10}"
    print(f"{'name':<24} {'family':<12} {columns}  tensor degrees up to 16")
    for model in models:
        degrees = " ".join(map(str, valid_tensor_degrees(model, 16)))
        print(
            f"{model.name:<24} {model.architecture:<12} {model.num_parameters:>16,} {model.num_active_parameters:>16,} "
            f"{2 * model.num_parameters / GIB:>9.2f} {model.kv_bytes_per_token_bf16:>10,}  {degrees}"
        )
    return EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl models``."""
    return run_command(add_arguments, run, argv, prog="hetrl models", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
