"""What of LMDeploy is supported. Everything here is data and one-sentence refusals."""

from __future__ import annotations

import importlib.metadata

from kvferry.errors import UnsupportedError
from kvferry.versions import in_range

SUPPORTED = ">=0.18,<0.19"


def check_version(version: str) -> None:
    """Raise UnsupportedError if this LMDeploy is outside the supported range."""
    if not in_range(version, SUPPORTED):
        raise UnsupportedError(
            f"kvferry_lmdeploy supports LMDeploy {SUPPORTED}, this is {version}: install an LMDeploy of that "
            "range, or a KVFerry that supports yours"
        )


def check_installed() -> None:
    """Raise UnsupportedError if LMDeploy is missing or outside the supported range."""
    try:
        version = importlib.metadata.version("lmdeploy")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedError(
            f"LMDeploy is not installed where KVFerry was asked to migrate for it: pip install "
            f"'lmdeploy{SUPPORTED}'"
        ) from None
    check_version(version)
