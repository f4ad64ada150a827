"""`kvferry` as a name for `--hicache-storage-backend`, beside SGLang's own.

SGLang knows two kinds of backends: its own, by a closed list of names, and `dynamic`, a class that the extra
configuration names. Ours is a dynamic one; the name spares users the three keys that say where the class is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

NAME = "kvferry"
DYNAMIC = {
    "backend_name": NAME,
    "module_path": "kvferry_sglang.hicache",
    "class_name": "KVFerryHiCache",
    "interface_v1": 1,
}

_ARGUMENTS = "sglang.srt.server_args.ServerArgs.add_cli_args"
_ATTACH = "sglang.srt.managers.cache_controller.HiCacheController.attach_storage_backend"
_ALLOCATOR = "sglang.srt.mem_cache.pool_host.common.get_allocator_type"
_SAVES = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.should_backup"


def register() -> None:
    """Have SGLang accept the name where a backend is chosen, and read it as a dynamic one of ours."""
    hooks = {_ARGUMENTS: add_name, _ATTACH: attach_by_name, _ALLOCATOR: allocator_by_name, _SAVES: saves}
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def add_name(original: Callable[..., Any], parser: argparse.ArgumentParser) -> Any:
    """Add SGLang's options, ours among the backends."""
    result = original(parser)
    for action in parser._actions:
        if action.dest == "hicache_storage_backend" and action.choices is not None:
            action.choices = [*action.choices, NAME]
    return result


def attach_by_name(
    original: Callable[..., Any], controller: Any, storage_backend: str, *args: Any, **kwargs: Any
) -> Any:
    """Attach a backend; `kvferry` is the dynamic one in `DYNAMIC`, and keeps its name."""
    if storage_backend != NAME:
        return original(controller, storage_backend, *args, **kwargs)
    given = kwargs.get("storage_backend_extra_config") or {}
    kwargs["storage_backend_extra_config"] = {**given, **DYNAMIC}
    result = original(controller, "dynamic", *args, **kwargs)
    controller.storage_backend_type = NAME
    return result


def allocator_by_name(original: Callable[[], str]) -> str:
    """Say how host pools are allocated: `"allocator": "shm"` counts for `kvferry` as for `dynamic`."""
    kind = original()
    if kind != NAME:
        return kind
    from sglang.srt.runtime_context import get_memory

    text = get_memory().hicache_storage_backend_extra_config or ""
    try:
        extra = json.loads(text)
    except ValueError:  # in a file, or wrong, of which SGLang tells the user
        return "default"
    return "shm" if isinstance(extra, dict) and extra.get("allocator") == "shm" else "default"


def saves(original: Callable[..., bool], controller: Any, transfer: Any) -> bool:
    """Say whether this rank saves pages of a pool. Where one rank saves for all, since the model's own cache
    is the same on all of them, a draft model's may still differ: each rank then saves its own part.
    """
    if original(controller, transfer):
        return True
    extra = controller.storage_config.extra_config or {}
    if extra.get("backend_name") != NAME or transfer.name not in ("draft", "draft_swa"):
        return False
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    entry = controller.mem_pool_host.entry_map.get(transfer.name)
    return entry is not None and isinstance(entry.host_pool, MHATokenToKVPoolHost)
