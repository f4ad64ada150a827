"""Which version of a library was measured."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_of(name: str) -> str:
    """Name and version; without a version where the library is on the path only, as KVFerry's stand-in for
    Mooncake is.
    """
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"in place of {name}"
