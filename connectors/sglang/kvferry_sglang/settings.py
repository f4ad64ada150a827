"""The keys of SGLang's extra configuration that are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry.config import Config, load_config

SOURCE = "hicache_storage_backend_extra_config"

# What SGLang reads there itself; some ways of starting it leave that in.
SGLANG_KEYS = frozenset(
    {
        "allocator",
        "backend_name",
        "class_name",
        "file_storage_path",
        "hicache_storage_pass_prefix_keys",
        "interface_v1",
        "module_path",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "tp_lcm_size",
    }
)


def config_of(extra: Mapping[str, Any] | None, source: str = SOURCE) -> Config:
    """Return the settings, those of the extra configuration with the highest rank.

    Raises ConfigError that names every wrong key.
    """
    ours = {key: value for key, value in (extra or {}).items() if key not in SGLANG_KEYS}
    return load_config(ours, overrides_source=source, others=SGLANG_KEYS)


def server_args() -> Any:
    """Return what the operator set; None where no server was started."""
    from sglang.srt.runtime_context import get_server_args

    try:
        return get_server_args()
    except (RuntimeError, ValueError, LookupError):
        return None
