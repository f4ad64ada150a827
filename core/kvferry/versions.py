"""Versions of the engines we connect to, without depending on a packaging library."""

from __future__ import annotations

import importlib.metadata
import re

from kvferry.errors import InvalidArgumentError

MOONCAKE = "mooncake-transfer-engine"  # Mooncake's own distributions: this, -non-cuda, -cuda13, -npu, ...

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")
_CLAUSE = re.compile(r"\s*(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)\s*")


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without trailing zeros: `0.32.0+cpu` -> (0, 32).

    Suffixes (pre-release, local) are ignored: 0.33.0rc1 counts as 0.33. Raises InvalidArgumentError.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise InvalidArgumentError(f"{version!r} is not a version number")
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def in_range(version: str, wanted: str) -> bool:
    """Say whether `version` meets all clauses of `wanted`, e.g. `>=0.32,<0.34`.

    Raises InvalidArgumentError.
    """
    have = release_of(version)
    for clause in wanted.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise InvalidArgumentError(f"{clause!r} in {wanted!r} is not a version clause such as >=0.32")
        limit = release_of(match[2])
        holds = {
            ">=": have >= limit,
            "<=": have <= limit,
            "==": have == limit,
            ">": have > limit,
            "<": have < limit,
        }
        if not holds[match[1]]:
            return False
    return True


def installed_under(prefix: str) -> list[str]:
    """Return the installed distributions whose names begin with `prefix`, as "name version", in order."""
    found = {
        f"{dist.name} {dist.version}"
        for dist in importlib.metadata.distributions()
        if (dist.name or "").lower().replace("_", "-").startswith(prefix)
    }
    return sorted(found)
