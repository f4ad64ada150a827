"""Durations and sizes as people write them: `30s`, `500ms`, `64GiB`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_MAX_BYTES = (1 << 63) - 1
_READABLE = 7  # characters: 9999MiB


def parse_duration(text: str) -> float:
    """Return the seconds meant by `text`: a number with `us`, `ms`, `s`, `m`, `min`, `h`, `d` or no unit.

    Raises ValueError.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration, write for example 30s, 500ms, 2m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(text: str) -> int:
    """Return the bytes meant by `text`: a number with `B`, `KiB`, `MiB`, ... (1024), `KB`, `MB`, ... (1000).

    A bare `G` is refused, because half of its readers would take it for the other one. Raises ValueError.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    scale = _size_scale(match[2].lower()) if match else None
    if match is None or scale is None:
        raise ValueError(
            f"{text!r} is not a size, write for example 4096, 64KiB, 4MiB or 64GiB (or KB, MB, GB)"
        )
    value = int(match[1]) * scale if match[1].isdigit() else round(float(match[1]) * scale)
    if value > _MAX_BYTES:
        raise ValueError(f"{text!r} is larger than any memory")
    return value


def _size_scale(unit: str) -> int | None:
    if unit in ("", "b"):
        return 1
    if unit[1:] in ("ib", "i"):
        return _BINARY.get(unit[0])
    if unit[1:] == "b":
        return _DECIMAL.get(unit[0])
    return None


def format_duration(seconds: float) -> str:
    """Return `seconds` in the largest unit that needs no fraction: 90 -> `90s`, 0.5 -> `500ms`, 7200 -> `2h`.

    `parse_duration` reads it back.
    """
    for unit, scale in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= scale and seconds % scale == 0:
            return f"{seconds / scale:.0f}{unit}"
    if seconds and seconds < 1 and math.isclose(seconds * 1e3, round(seconds * 1e3)):
        return f"{round(seconds * 1e3)}ms"
    return f"{seconds:g}s"


def format_size(size_bytes: int) -> str:
    """Return `size_bytes` in the largest binary unit that divides it, or in a decimal one where that makes a
    long number short: 4194304 -> `4MiB`, 8000000000 -> `8GB`.

    `parse_size` reads it back.
    """
    binary = _in_largest(size_bytes, _BINARY, "iB")
    decimal = _in_largest(size_bytes, _DECIMAL, "B")
    return decimal if len(binary) > _READABLE >= len(decimal) else binary


def _in_largest(size_bytes: int, units: Mapping[str, int], suffix: str) -> str:
    for unit in ("t", "g", "m", "k"):
        if size_bytes and size_bytes % units[unit] == 0:
            return f"{size_bytes // units[unit]}{unit.upper()}{suffix}"
    return f"{size_bytes}B"


def approximate_size(size_bytes: int) -> str:
    """Return `size_bytes` for people to read, with one decimal: 16729894912 -> `15.6 GiB`."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}".replace(".0 ", " ")
    return f"{size_bytes} B"
