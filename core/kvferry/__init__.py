"""KVFerry: makes the KV cache of LLM serving engines move and last.

Importing this package loads no engine, no torch and no native code; subpackages load what they need.
"""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("kvferry")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
