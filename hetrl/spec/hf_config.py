"""A Hugging Face ``config.json`` becomes a `Model`.

No code of a repository is ever run: the family named by ``model_type`` decides which tensors exist, and a family or
feature that is not described here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetrl.errors import NotSupported, Problem, SpecError, did_you_mean
from hetrl.spec import hf_layers
from hetrl.spec.hf_families import TEXT_CONFIG_KEYS, Family, canonical_name, families, refusal
from hetrl.spec.hf_fields import Fields
from hetrl.spec.hf_gemma4 import gemma4_layers
from hetrl.spec.model import Layer, Model

MAX_LAYERS = 2048
MAX_POSITION_UNKNOWN = 2**31
HEADS = ("lm", "scalar")


def model_from_config(
    config: Mapping[str, object], *, name: str, head: str = "lm", path: str = "", source: str = ""
) -> Model:
    """Return the model that a ``config.json`` describes.

    Parameters
    ----------
    config
        The parsed file.
    name
        Name for messages and plans.
    head
        ``lm`` for the config's own output head, ``scalar`` for a reward model or critic (one output, no bias).
    path
        Prefix for problem paths, e.g. ``workflow.actor_model``.
    source
        Where the config came from.

    Raises
    ------
    NotSupported
        For a family or feature that is not described here.
    SpecError
        With every missing or faulty key.

    Examples
    --------
    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> model_from_config(config, name="Llama-3-8B").num_parameters
    8030261248
    """
    if not isinstance(config, Mapping):
        raise SpecError(
            Problem(path=path, message="a model config must be a mapping", found=type(config).__name__, rule="MODEL")
        )
    text, notes = flatten(config)
    model_type, family = family_of(text, path)
    fields = Fields(text, family.defaults, path)
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    vocab = fields.count("vocab_size")
    num_layers = fields.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if num_layers > MAX_LAYERS:
        fields.reject("num_hidden_layers", "too many layers", num_layers, f"at most {MAX_LAYERS}")
        num_layers = 1
    build = gemma4_layers if model_type == "gemma4_text" else decoder_layers
    layers = build(fields, family, num_layers)
    tied_value = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    tied = family.tied if tied_value is None else bool(tied_value)
    embedding = vocab * hidden
    if family.learned_positions:
        embedding += (fields.count(family.learned_positions) + family.position_offset) * hidden
    norm = hf_layers.norm_parameters(fields, family)
    if family.embedding_norm:
        embedding += norm
    if head not in HEADS:
        raise SpecError(Problem(path=path, message="unknown head", found=head, valid=", ".join(HEADS)))
    head_parameters = (
        hidden
        if head == "scalar"
        else (0 if tied else vocab * hidden) + (vocab if hf_layers.switched(fields, family.head_bias) else 0)
    )
    quantization, block = quantization_of(fields, text, config)
    if fields.problems:
        raise SpecError(fields.problems)
    if fields.filled:
        shown = ", ".join(
            f"{key} {value}" for key, value in fields.filled.items() if not isinstance(value, (list, dict))
        )
        notes.append(f"class defaults used for {shown}")
    return Model(
        name=name,
        architecture=model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        max_position=fields.count("max_position_embeddings", "n_positions", "n_ctx", default=MAX_POSITION_UNKNOWN),
        layers=layers,
        tied_embeddings=tied and head == "lm",
        embedding_parameters=embedding,
        head_parameters=head_parameters,
        final_norm_parameters=norm,
        head=head,
        quantization=quantization,
        quantization_block=block,
        source=source,
        notes=tuple(notes),
    )


def flatten(config: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the language model's part of a config, and a note if it was nested."""
    for key in TEXT_CONFIG_KEYS:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            text = dict(nested)
            text.setdefault("model_type", config.get("model_type"))
            outer = config.get("model_type", "a multimodal config")
            return text, [f"language model of {outer} ({key}); other towers are not counted"]
    return dict(config), []


def family_of(config: Mapping[str, object], path: str) -> tuple[str, Family]:
    """Return the ``model_type`` and its family, or refuse by name."""
    model_type = config.get("model_type")
    where = f"{path}.model_type" if path else "model_type"
    if not isinstance(model_type, str) or not model_type:
        raise SpecError(
            Problem(
                path=where,
                message="missing",
                found=repr(model_type)[:80],
                valid=", ".join(sorted(families())),
                rule="MODEL",
            )
        )
    if config.get("block_configs") is not None:
        raise NotSupported(
            Problem(
                path=where,
                message="unsupported architecture: layers differ by block_configs",
                found=model_type,
                rule="MODEL_FAMILY",
            )
        )
    resolved = canonical_name(model_type)
    if resolved in families():
        return resolved, families()[resolved]
    reason = refusal(model_type)
    message = f"unsupported architecture: it has {reason}" if reason else "unsupported architecture"
    hint = did_you_mean(model_type, families())
    raise NotSupported(
        Problem(
            path=where,
            message=message,
            found=model_type,
            valid=hint or ", ".join(sorted(families())),
            rule="MODEL_FAMILY",
        )
    )


def decoder_layers(fields: Fields, family: Family, num_layers: int) -> tuple[Layer, ...]:
    """Return all decoder layers; equal ones share one object."""
    attention = (
        hf_layers.mla_attention(fields, family)
        if family.attention == "mla"
        else hf_layers.gqa_attention(fields, family)
    )
    norms = family.norms_per_layer * hf_layers.norm_parameters(fields, family)
    made: dict[tuple[bool, int | None], Layer] = {}
    layers = []
    for index in range(num_layers):
        key = (hf_layers.is_expert_layer(fields, family, index), hf_layers.window(fields, family, index))
        if key not in made:
            if key[0]:
                mlp = hf_layers.expert_mlp(fields, family)
            else:
                mlp = hf_layers.dense_mlp(fields, family, dense_width(fields))
            made[key] = hf_layers.join(attention, mlp, norms=norms, gated=family.gated, window=key[1])
        layers.append(made[key])
    return tuple(layers)


def dense_width(fields: Fields) -> int:
    """Return the width of a dense MLP; four times hidden where a family of the GPT-2 kind omits it."""
    keys = ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim")
    if any(fields.get(key) is not None for key in keys):
        return fields.count(*keys)
    if fields.text("model_type") in ("gpt2", "gptj", "bloom"):
        return 4 * fields.count("hidden_size", "n_embd")
    return fields.count("intermediate_size")


def quantization_of(fields: Fields, text: Mapping[str, object], config: Mapping[str, object]) -> tuple[str, int]:
    """Return name and block length of the checkpoint's quantisation ('' and 0 for none)."""
    block = text.get("quantization_config", config.get("quantization_config"))
    if block is None:
        return "", 0
    if not isinstance(block, Mapping):
        fields.reject("quantization_config", "not a mapping", block)
        return "", 0
    method = str(block.get("quant_method") or block.get("quant_algo") or "unknown")
    size = block.get("weight_block_size")
    if (
        isinstance(size, (list, tuple))
        and size
        and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in size)
    ):
        return method, max(size)
    return method, 0
