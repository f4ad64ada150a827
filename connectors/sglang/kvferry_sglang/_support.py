"""What of SGLang is supported. Everything here is data and one-sentence refusals."""

from __future__ import annotations

from kvferry.errors import UnsupportedError
from kvferry.versions import in_range

SUPPORTED = ">=0.5.23,<0.5.24"


def check_version(version: str) -> None:
    """Raise UnsupportedError if this SGLang is outside the supported range."""
    if not in_range(version, SUPPORTED):
        raise UnsupportedError(
            f"kvferry_sglang supports SGLang {SUPPORTED}, this is {version}: install an SGLang of that "
            "range, or a KVFerry that supports yours"
        )
