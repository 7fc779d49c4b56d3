"""Make the demo's model: a Llama of 0.87 million random parameters with a byte-level tokenizer, without any download.

python examples/demo/make_model.py [FOLDER]        default: model beside this file
"""

from __future__ import annotations

import sys
from pathlib import Path

HIDDEN_SIZE = 128
NUM_LAYERS = 4
HEAD_DIM = 32
NUM_HEADS = 4
NUM_KV_HEADS = 2
MAX_POSITION = 1024
VOCAB_MULTIPLE = 64
INITIALIZER_RANGE = 0.05
SEED = 0


def make_tokenizer():
    """One token per byte, and three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>"]
    vocabulary = {
        token: number for number, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def make_model(folder: Path) -> None:
    """Write config, weights (safetensors) and tokenizer to ``folder``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=3 * HIDDEN_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITION,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        initializer_range=INITIALIZER_RANGE,
        dtype="float32",
    )
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("model")
    make_model(target)
    print(f"wrote {target}")
