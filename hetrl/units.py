"""Human units to SI, once, at the border.

Bandwidths become bytes per second, sizes bytes, times seconds, rates FLOP per second. A lower-case ``b`` in a
bandwidth is bits, an upper-case ``B`` bytes (``400Gbps`` is 5e10 bytes/s, ``50GB/s`` too); ``Ki``/``Mi``/``Gi`` are
powers of 1024, ``K``/``M``/``G`` powers of 1000. A plain number is in the base unit, and refused where it cannot be:
``memory: 80`` means gigabytes, ``network: 400`` gigabits.
"""

from __future__ import annotations

import math
import re

from hetrl.errors import Problem, SpecError

GIB = 1024**3
MIB = 1024**2

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIX = {**_DECIMAL, **_BINARY}
_NUMBER = r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*"
_BANDWIDTH = re.compile(_NUMBER + r"([kKMGTP]i?)?(bps|b/s|bit/s|Bps|B/s|iB/s)\s*")
_SIZE = re.compile(_NUMBER + r"([kKMGTP]i?)?B\s*")
_TIME = re.compile(_NUMBER + r"(ns|us|µs|ms|s|min|h)\s*")
_RATE = re.compile(_NUMBER + r"([kKMGTP])?FLOP(?:S|/s|s)\s*")
_PER_SECOND = {"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1.0, "min": 1 / 60, "h": 1 / 3600}


def _reject(text: object, path: str, what: str, valid: str) -> SpecError:
    return SpecError(Problem(path=path, message=f"not {what}", found=repr(text), valid=valid, rule="UNIT"))


def _plain(value: float, path: str, what: str, valid: str, *, least: float = 0.0, below: float = math.inf) -> float:
    """Return a number without a unit if it can be meant in the base unit; ``memory: 80`` are hardly 80 bytes."""
    if 0 < value < least or value >= below:
        raise SpecError(
            Problem(path=path, message=f"no {what} without a unit", found=f"{value:g}", valid=valid, rule="UNIT")
        )
    return value


def _positive(value: float, text: object, path: str, what: str, valid: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise _reject(text, path, f"a positive {what}", valid)
    return value


def parse_bandwidth(text: object, path: str = "") -> float:
    """Return bytes per second in one direction; a bare number is taken as bytes per second.

    >>> parse_bandwidth("400Gbps"), parse_bandwidth("50GB/s")
    (50000000000.0, 50000000000.0)
    """
    valid = "a bandwidth such as 400Gbps, 50GB/s or a number of bytes per second from 1e6"
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _positive(_plain(float(text), path, "bandwidth", valid, least=1e6), text, path, "bandwidth", valid)
    match = _BANDWIDTH.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _reject(text, path, "a bandwidth", valid)
    value = float(match[1]) * _PREFIX[match[2] or ""]
    if match[3] in ("bps", "b/s", "bit/s"):
        value /= 8
    return _positive(value, text, path, "bandwidth", valid)


def parse_bytes(text: object, path: str = "") -> float:
    """Return bytes; a bare number is taken as bytes.

    >>> parse_bytes("80GB"), parse_bytes("2GiB")
    (80000000000.0, 2147483648.0)
    """
    valid = "a size such as 80GB, 46068MiB or a number of bytes from 2**20"
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _positive(_plain(float(text), path, "size", valid, least=2.0**20), text, path, "size", valid)
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _reject(text, path, "a size", valid)
    return _positive(float(match[1]) * _PREFIX[match[2] or ""], text, path, "size", valid)


def parse_seconds(text: object, path: str = "") -> float:
    """Return seconds (zero allowed); a bare number is taken as seconds.

    >>> parse_seconds("30us") == 30e-6
    True
    """
    valid = "a time such as 30us, 5ms or a number of seconds below 1"
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        value = _plain(float(text), path, "time", valid, below=1.0)
    else:
        match = _TIME.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _reject(text, path, "a time", valid)
        value = float(match[1]) / _PER_SECOND[match[2]]
    if not math.isfinite(value) or value < 0:
        raise _reject(text, path, "a time of at least 0", valid)
    return value


def parse_flops(text: object, path: str = "") -> float:
    """Return FLOP per second; a bare number is taken as FLOP/s.

    >>> parse_flops("989TFLOPS")
    989000000000000.0
    """
    valid = "a rate such as 989TFLOPS or a number of FLOP per second from 1e9"
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _positive(_plain(float(text), path, "rate", valid, least=1e9), text, path, "rate", valid)
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _reject(text, path, "a rate", valid)
    return _positive(float(match[1]) * _PREFIX[match[2] or ""], text, path, "rate", valid)


def format_bytes(num_bytes: float, digits: int = 1) -> str:
    """Return a size in the largest binary unit that keeps it at or above one, e.g. ``'74.5 GiB'``.

    Whatever people read of sizes is written by this function, so that no text mixes GB and GiB. (Bandwidths are in
    GB/s and Gbps, as on datasheets.)
    """
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.{digits}f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Return a time with three significant digits in s, ms or us."""
    if seconds == 0:
        return "0 s"
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
