"""Model configs: published counts, caches per token, and features that must not be misread."""

from __future__ import annotations

import pytest

from hetrl.errors import NotSupported, SpecError
from hetrl.spec.hf_config import model_from_config
from hetrl.spec.model_source import find_model

# Published: (parameters, active parameters, cache bytes per token in bf16).
PUBLISHED = {
    "Llama-3-8B": (8030261248, 8030261248, 131072),
    "Llama-3-70B": (70553706496, 70553706496, 327680),
    "Qwen2.5-7B": (7615616512, 7615616512, 57344),
    "Qwen2.5-14B": (14770033664, 14770033664, 196608),
    "Qwen2.5-32B": (32763876352, 32763876352, 262144),
    "Qwen2.5-72B": (72706203648, 72706203648, 327680),
    "Qwen3-4B": (4022468096, 4022468096, 147456),
    "Qwen3-8B": (8190735360, 8190735360, 147456),
    "Qwen3-14B": (14768307200, 14768307200, 163840),
    "Qwen3-32B": (32762123264, 32762123264, 262144),
    "Qwen3-30B-A3B": (30532122624, 3353032704, 98304),
    "Mixtral-8x7B": (46702792704, 12879925248, 131072),
    "DeepSeek-V3": (671026419200, 37552297472, 70272),
    "Gemma-2-9B": (9241705984, 9241705984, 344064),
    "Gemma-3-27B (text)": (27009346304, 27009346304, 507904),
    "Mistral-7B-v0.1": (7241732096, 7241732096, 131072),
    "Phi-4": (14659507200, 14659507200, 204800),
    "gpt-oss-20b": (20914757184, 4187440704, 49152),
    "Llama-3.1-405B": (405853388800, 405853388800, 516096),
    "FsfairX-LLaMA3-RM-v0.1": (7504928768, 7504928768, 131072),
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    model = find_model(name)
    assert (model.num_parameters, model.num_active_parameters, model.kv_bytes_per_token_bf16) == PUBLISHED[name]


def test_windows_by_layer() -> None:
    gemma = find_model("Gemma-3-27B")
    assert [layer.window for layer in gemma.layers[:7]] == [1024] * 5 + [None, 1024]
    assert [layer.window for layer in find_model("Gemma-2-9B").layers[:2]] == [4096, None]
    assert {layer.window for layer in find_model("Mistral-7B-v0.1").layers} == {4096}
    assert {layer.window for layer in find_model("Qwen2.5-7B").layers} == {None}
    assert [layer.window for layer in find_model("gpt-oss-20b").layers[:2]] == [128, None]


def test_scalar_head_is_one_row() -> None:
    lm, scalar = model_from_config(LLAMA, name="x"), model_from_config(LLAMA, name="x", head="scalar")
    assert lm.num_parameters - scalar.num_parameters == 256 * 64 - 64


def test_null_is_absent() -> None:
    assert model_from_config({**LLAMA, "num_key_value_heads": None, "head_dim": None}, name="x") == model_from_config(
        LLAMA, name="x"
    )


def test_quantisation_block_is_read() -> None:
    assert find_model("DeepSeek-V3").quantization_block == 128
    assert find_model("gpt-oss-20b").quantization == "mxfp4"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": "large"}, "hidden_size: not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: out of range"),
        ({"num_hidden_layers": 10**6}, "too many layers"),
        ({"num_attention_heads": 3}, "head_dim: missing"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"intermediate_size": None}, "intermediate_size: missing"),
        ({"attention_bias": "yes"}, "attention_bias: not a boolean"),
        ({"quantization_config": 8}, "quantization_config: not a mapping"),
    ],
)
def test_faulty_keys_are_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        model_from_config({**LLAMA, **change}, name="x")


@pytest.mark.parametrize("kind", ["mamba", "t5", "qwen3_next", "nonsense", "deepseek_v32"])
def test_other_architectures_are_refused_by_name(kind: str) -> None:
    with pytest.raises(NotSupported, match=f"unsupported architecture.*{kind}"):
        model_from_config({**LLAMA, "model_type": kind}, name="x")


def test_no_model_type() -> None:
    with pytest.raises(SpecError, match="model_type: missing"):
        model_from_config({"hidden_size": 64}, name="x")
