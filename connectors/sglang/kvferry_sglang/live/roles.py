"""Prefill servers that become decode servers, and the other way round: what they share in the pool stays.

SGLang clears the storage when a server's role changes, since its own storages belong to one server. Our pool
belongs to all of them, and what a page is called tells what is in it, whatever the role of who saved it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from kvferry_sglang.names import NAME

_RELEASE = "sglang.srt.disaggregation.role_switch._release_prefix_cache_for_role_switch"


def register() -> None:
    """Keep the pool as it is when SGLang changes a server's role."""
    HookRegistry.register(_RELEASE, keep_pages, HookType.AROUND)


def keep_pages(original: Callable[[Any], None], scheduler: Any) -> None:
    """Empty SGLang's own caches; the storage too if it is another one than ours."""
    tree = scheduler.tree_cache
    controller = getattr(tree, "cache_controller", None)
    extra = getattr(getattr(controller, "storage_config", None), "extra_config", None) or {}
    if extra.get("backend_name") != NAME:
        original(scheduler)
        return
    tree.clear_storage_backend = None  # which SGLang asks whether it can be called
    try:
        original(scheduler)
    finally:
        vars(tree).pop("clear_storage_backend", None)
