"""Reading and writing sets of fitted models: one zip archive, ``models.json`` and numpy arrays, no pickles.

The JSON part is meant for people too: coefficients, measured ranges, errors, sources and licences.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.fitted import Forest, Intervals, KernelCorrection, Roofline
from hetrl.cost.links import LinkCurve
from hetrl.cost.operators import ENGINES, OperatorLibrary, OperatorModel
from hetrl.cost.shipped import FOLDER
from hetrl.cost.work import DIMENSIONS, TERMS, Chip
from hetrl.errors import Problem, SpecError

FORMAT = "hetrl-operators"
VERSION = 4
BUILTIN = FOLDER / "published.zip"
MAX_JSON_BYTES = 16 * 2**20
MAX_ARRAY_BYTES = 64 * 2**20
INDEX = "models.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model inside an archive, read on demand."""

    path: Path
    entry: Mapping[str, Any]

    def load(self) -> OperatorModel:
        """Read the arrays and build the model; SpecError if they are damaged."""
        try:
            arrays = _read_arrays(self.path, str(self.entry["arrays"])) if self.entry["arrays"] else {}
            return _model_from(self.entry, arrays)
        except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise SpecError(
                Problem(path=str(self.path), message=f"damaged model {self.entry.get('device')}: {error}")
            ) from error

    def digest(self) -> str:
        """Identify its content: `model_digest` of what `load` gives, without reading the arrays."""
        checksum = 0
        if self.entry["arrays"]:
            with zipfile.ZipFile(self.path) as archive:
                checksum = archive.getinfo(str(self.entry["arrays"])).CRC
        return _digest(self.entry, checksum)


def model_digest(model: OperatorModel) -> str:
    """Identify the content of a model, the same before it is written and after it is read."""
    arrays = _arrays_of(model)
    block = _block(arrays) if arrays else b""
    return _digest(_entry_of(model, _name_of(model) if arrays else ""), zlib.crc32(block))


def _digest(entry: Mapping[str, Any], checksum: int) -> str:
    return hashlib.sha256(json.dumps([entry, checksum], sort_keys=True).encode()).hexdigest()


def read_library(path: str | os.PathLike[str]) -> OperatorLibrary:
    """Read the index of a file; the models' arrays follow when they are used.

    Raises
    ------
    SpecError
        If it cannot be read, or is not a set of operator models of this version.
    """
    document = read_index(path)
    library = OperatorLibrary()
    try:
        for entry in document["models"]:
            key = (str(entry["device"]), str(entry["operator"]), str(entry["dtype"]))
            if key[1] not in DIMENSIONS:
                raise ValueError(f"unknown operator {key[1]}")
            library.add_lazy(key, StoredModel(path=Path(path), entry=entry))
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(Problem(path=str(path), message=f"damaged set of operator models: {error}")) from error
    return library


def read_links(path: str | os.PathLike[str]) -> tuple[LinkCurve, ...]:
    """Read the link curves of a file; SpecError as `read_library`."""
    document = read_index(path)
    try:
        return tuple(LinkCurve.from_json(entry) for entry in document["links"])
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(Problem(path=str(path), message=f"damaged link curves: {error}")) from error


def read_index(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read and check the JSON part."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(INDEX).file_size > MAX_JSON_BYTES:
                raise ValueError("its index is too large")
            document = json.loads(archive.read(INDEX))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise SpecError(Problem(path=str(path), message=f"cannot be read as operator models: {error}")) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise SpecError(
            Problem(path=str(path), message="not operator models of this version", valid=f"{FORMAT}, version {VERSION}")
        )
    return document


def write_library(
    path: str | os.PathLike[str],
    models: Sequence[OperatorModel],
    links: Sequence[LinkCurve] = (),
    facts: Mapping[str, object] | None = None,
) -> None:
    """Write models and link curves, whole or not at all. Equal input gives equal bytes.

    Raises
    ------
    SpecError
        If the path cannot be written.
    """
    entries = []
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for model in sorted(models, key=lambda each: (each.device, each.operator, each.dtype)):
            arrays = _arrays_of(model)
            name = _name_of(model) if arrays else ""
            if arrays:
                _add(archive, name, _block(arrays))
            entries.append(_entry_of(model, name))
        document = {
            "format": FORMAT,
            "version": VERSION,
            "facts": dict(facts or {}),
            "models": entries,
            "links": [curve.to_json() for curve in links],
        }
        _add(archive, INDEX, json.dumps(document, indent=1, allow_nan=False).encode())
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.write_bytes(buffer.getvalue())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SpecError(
            Problem(path=str(target), message=f"cannot be written: {error.strerror}", rule="OUTPUT")
        ) from error


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def _name_of(model: OperatorModel) -> str:
    return f"{model.device}-{model.operator}-{model.dtype}.npz"


def _block(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    block = io.BytesIO()
    np.savez(block, **arrays)  # type: ignore[arg-type]
    return block.getvalue()


def _arrays_of(model: OperatorModel) -> dict[str, NDArray[np.generic]]:
    arrays: dict[str, NDArray[np.generic]] = {}
    if model.forest is not None:
        arrays |= model.forest.to_arrays()
    if model.correction is not None:
        arrays |= model.correction.to_arrays()
    return arrays


def _read_arrays(path: Path, name: str) -> dict[str, NDArray[np.generic]]:
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo(name).file_size > MAX_ARRAY_BYTES:
            raise ValueError("its arrays are too large")
        with np.load(io.BytesIO(archive.read(name)), allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}


def _entry_of(model: OperatorModel, arrays: str) -> dict[str, object]:
    return {
        "device": model.device,
        "operator": model.operator,
        "dtype": model.dtype,
        "provenance": model.provenance,
        "chip": asdict(model.chip),
        "terms": list(TERMS[model.operator]),
        "rooflines": {engine: asdict(roofline) for engine, roofline in model.rooflines.items()},
        "intervals": asdict(model.intervals),
        "ranges": {name: list(limits) for name, limits in model.ranges.items()},
        "facts": dict(model.facts),
        "arrays": arrays,
    }


def _model_from(entry: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> OperatorModel:
    intervals = entry["intervals"]
    rooflines = {
        str(engine): Roofline(
            offset_seconds=float(value["offset_seconds"]),
            coefficients=tuple(map(float, value["coefficients"])),
            power=float(value["power"]),
            num_serial=int(value["num_serial"]),
        )
        for engine, value in entry["rooflines"].items()
    }
    terms = TERMS[entry["operator"]]
    if not rooflines or any(engine not in ENGINES for engine in rooflines):
        raise ValueError(f"engines are not of {', '.join(ENGINES)}")
    if any(len(roofline.coefficients) != len(terms) for roofline in rooflines.values()):
        raise ValueError(f"a roofline of {entry['operator']} has {len(terms)} coefficients")
    if any(not 0 <= roofline.num_serial < len(terms) for roofline in rooflines.values()):
        raise ValueError("every term of a roofline is serial")
    low, high = intervals["extrapolated"]
    return OperatorModel(
        device=str(entry["device"]),
        operator=str(entry["operator"]),
        dtype=str(entry["dtype"]),
        chip=Chip(**entry["chip"]),
        rooflines=rooflines,
        intervals=Intervals(
            edges_seconds=tuple(map(float, intervals["edges_seconds"])),
            low=tuple(map(float, intervals["low"])),
            high=tuple(map(float, intervals["high"])),
            extrapolated=(float(low), float(high)),
        ),
        ranges={str(name): (float(limits[0]), float(limits[1])) for name, limits in entry["ranges"].items()},
        provenance=str(entry["provenance"]),
        forest=Forest.from_arrays(arrays) if "forest_head" in arrays else None,
        correction=KernelCorrection.from_arrays(arrays) if "kernel_points" in arrays else None,
        facts=entry["facts"],
    )
