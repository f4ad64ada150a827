"""What of vLLM is supported. Everything here is data and one-sentence refusals."""

from __future__ import annotations

from typing import Any

from kvferry.config.sources import process_environment
from kvferry.errors import UnsupportedError
from kvferry.versions import in_range
from kvferry_vllm.specs import KINDS, is_state, kinds_of

SUPPORTED = ">=0.32,<0.33"

# Settings of vLLM's parallel configuration that must be 1, and what they are called.
_SINGLE = {
    "decode_context_parallel_size": "decode context parallelism",
    "prefill_context_parallel_size": "prefill context parallelism",
}
# Block hashes that are equal in all processes, whatever the environment.
_SEEDLESS_HASHES = ("sha256", "sha256_cbor")

# Kinds of KV cache of which no block is given up or written again while its request runs.
_KEPT_WHOLE = ("FullAttentionSpec", "MLAAttentionSpec")


def check_version(version: str) -> None:
    """Raise UnsupportedError if this vLLM is outside the supported range."""
    if not in_range(version, SUPPORTED):
        raise UnsupportedError(
            f"KVFerryConnector supports vLLM {SUPPORTED}, this is {version}: "
            "install a vLLM of that range, or a KVFerry that supports yours"
        )


def check_config(vllm_config: Any) -> None:
    """Raise UnsupportedError, with one sentence, if the engine is set up in a way we cannot serve."""
    for name, title in _SINGLE.items():
        size = getattr(vllm_config.parallel_config, name, 1)
        if size > 1:
            raise UnsupportedError(
                f"KVFerryConnector does not support {title} ({name}={size}) yet; set it to 1"
            )


def check_groups(kv_cache_config: Any) -> None:
    """Raise UnsupportedError if the model has a KV cache whose blocks do not belong to prompt positions."""
    for group in kv_cache_config.kv_cache_groups:
        other = sorted(kinds_of(group.kv_cache_spec).difference(KINDS))
        if other:
            raise UnsupportedError(
                f"KVFerryConnector does not support a KV cache of kind {other[0]} (layer "
                f"{next(iter(group.layer_names), 'unknown')}); it moves {', '.join(KINDS)}"
            )
        if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
            raise UnsupportedError(
                "KVFerryConnector does not support KV cache groups in a host pool of vLLM's own (HiSparse); "
                "turn that off"
            )


def announces(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Return whether blocks of a prompt may be read while the prompt is computed: each layer is written once
    in a step, and the engine keeps all blocks until the request ends. Else they are read at the end."""
    groups = kv_cache_config.kv_cache_groups
    return (
        len(groups) == 1
        and type(groups[0].kv_cache_spec).__name__ in _KEPT_WHOLE
        and not vllm_config.parallel_config.use_ubatching
        and vllm_config.speculative_config is None
    )


def pools(enabled: str, vllm_config: Any, kv_cache_config: Any) -> bool:
    """Return whether the engine uses the pool. Raise UnsupportedError if it should, and its block hashes mean
    nothing to other processes, or its blocks nothing without the request's state."""
    if enabled == "off" or (enabled == "auto" and vllm_config.kv_transfer_config.kv_role != "kv_both"):
        return False
    if any(is_state(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups):
        raise UnsupportedError(
            "KVFerryConnector does not pool models with recurrent states, it only hands them off: set "
            "pool.enabled to off"
        )
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if algorithm not in _SEEDLESS_HASHES and not process_environment().get("PYTHONHASHSEED"):
        raise UnsupportedError(
            f"KVFerryConnector cannot pool with --prefix-caching-hash-algo {algorithm}, whose hashes differ "
            "from process to process: use sha256, set PYTHONHASHSEED to the same number everywhere, or set "
            "pool.enabled to off"
        )
    return True
