"""Find the config of a model: catalogue, local directory or file, or (if allowed) the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hetrl import catalog
from hetrl.errors import Problem, SpecError, did_you_mean
from hetrl.spec.hf_config import model_from_config
from hetrl.spec.model import Model
from hetrl.spec.yaml_text import parse_yaml, read_text

MAX_CONFIG_BYTES = 1024**2
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@cache
def _names() -> Mapping[str, str]:
    table: dict[str, str] = {}
    for name, entry in catalog.read("models.yaml").items():
        for alias in (name, entry["hf_id"], *entry.get("aliases", ())):
            other = table.setdefault(alias.casefold(), name)
            if other != name:
                raise AssertionError(f"model name {alias!r} means both {other} and {name}")
    return table


def known_models() -> tuple[str, ...]:
    """Return the catalogue's model names."""
    return tuple(catalog.read("models.yaml"))


def find_model(
    reference: object,
    *,
    path: str = "",
    head: str | None = None,
    base: Path | None = None,
    allow_hub: bool = False,
) -> Model:
    """Return the model of a reference.

    Parameters
    ----------
    reference
        A catalogue name or hub id, a directory with a ``config.json`` (or such a file), or a mapping
        ``{name: ..., config: {...}}`` with the config inline.
    path
        YAML path for messages.
    head
        ``lm`` or ``scalar``; None keeps what the catalogue says (else ``lm``).
    base
        Directory that relative paths are tried against after the working directory.
    allow_hub
        Whether an unknown ``owner/name`` may be looked up on the hub. Only its ``config.json`` is read.

    Raises
    ------
    SpecError
        If nothing of that name exists, or its config is faulty or not supported.

    Examples
    --------
    >>> find_model("sfairXC/FsfairX-LLaMA3-RM-v0.1").num_parameters
    7504928768
    """
    if isinstance(reference, Mapping):
        return _inline(reference, path, head, base, allow_hub)
    if not isinstance(reference, str) or not reference.strip():
        raise SpecError(Problem(path=path, message="must name a model", found=repr(reference)[:80], rule="MODEL"))
    name = reference.strip()
    known = _names().get(name.casefold())
    if known is not None:
        entry = catalog.read("models.yaml")[known]
        return model_from_config(
            entry["config"], name=name, head=head or entry.get("head", "lm"), path=path, source=entry["source"]
        )
    file = _local_config(name, base)
    if file is not None:
        return model_from_config(
            _read_config(file, path), name=name, head=head or "lm", path=path, source=str(file.name)
        )
    if allow_hub and _HUB_ID.fullmatch(name):
        return model_from_config(
            _hub_config(name, path), name=name, head=head or "lm", path=path, source=f"huggingface.co/{name}"
        )
    hint = did_you_mean(name, (*known_models(), *(entry["hf_id"] for entry in catalog.read("models.yaml").values())))
    valid = f"{hint} " if hint else ""
    valid += "a name of `hetrl models`, a directory with a config.json" + (
        "" if allow_hub else ", or a hub id with workflow.allow_hub: true"
    )
    raise SpecError(Problem(path=path, message="no such model or directory", found=name, valid=valid, rule="MODEL"))


def _inline(reference: Mapping[str, object], path: str, head: str | None, base: Path | None, allow_hub: bool) -> Model:
    unknown = [key for key in reference if key not in ("name", "config", "model", "head")]
    if unknown:
        raise SpecError(
            [
                Problem(
                    path=f"{path}.{key}",
                    message="unknown key",
                    found=str(key),
                    valid="name, model, config, head",
                    rule="UNKNOWN_KEY",
                )
                for key in unknown
            ]
        )
    chosen = reference.get("head") or head
    if chosen is not None and chosen not in ("lm", "scalar"):
        raise SpecError(
            Problem(path=f"{path}.head", message="unknown head", found=repr(chosen)[:80], valid="lm, scalar")
        )
    config: Any = reference.get("config")
    if config is None:
        return find_model(reference.get("model"), path=f"{path}.model", head=chosen, base=base, allow_hub=allow_hub)
    name = reference.get("name", "inline config")
    return model_from_config(config, name=str(name), head=str(chosen or "lm"), path=f"{path}.config", source="job file")


def _local_config(name: str, base: Path | None) -> Path | None:
    if "\0" in name or len(name) > 1024:
        return None
    for root in (Path(), base or Path()):
        place = root / Path(name).expanduser()
        try:
            if place.is_dir() and (place / "config.json").is_file():
                return place / "config.json"
            if place.suffix == ".json" and place.is_file():
                return place
        except OSError:
            continue
    return None


def _read_config(file: Path, path: str) -> Mapping[str, object]:
    config = parse_yaml(read_text(file, "model config", MAX_CONFIG_BYTES), source=str(file))
    if not isinstance(config, dict):
        raise SpecError(Problem(path=path, message="a model config must be a mapping", found=str(file), rule="MODEL"))
    return config


def _hub_config(name: str, path: str) -> Mapping[str, object]:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise SpecError(
            Problem(
                path=path,
                message="the hub needs the package huggingface_hub",
                found=name,
                valid="pip install huggingface_hub",
                rule="MODEL",
            )
        ) from None
    try:
        file = hf_hub_download(repo_id=name, filename="config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise SpecError(
            Problem(
                path=path, message="the hub gave no config.json", found=f"{name}: {type(error).__name__}", rule="MODEL"
            )
        ) from None
    return _read_config(Path(file), path)
