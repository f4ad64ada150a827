"""For CPU runs in tests only: an SGLang plug-in (entry point in the folder beside it) that lets HiCache and
prefill/decode disaggregation run with `--device cpu`, on SGLang's unchanged package.

Host memory is not pinned, which needs a driver, nor kept free by the GiB; the copies between pools, which
SGLang imports for accelerators only, are those of `sgl_kernel.kvcacheio` here; pages are hashed in Python,
without a compiler; senders take indices without a CUDA event.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def activate() -> None:
    # By its full name: as an attribute of the package it would be one of the names that cannot be called.
    copies = {
        name: copy
        for name, copy in vars(importlib.import_module("sgl_kernel.kvcacheio")).items()
        if name.startswith("transfer_kv")
    }
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name in ("base.HostKVCache", "mamba.MambaPoolHost"):
        HookRegistry.register(f"sglang.srt.mem_cache.pool_host.{name}.__init__", _unpinned, HookType.AROUND)
    for name in ("mha", "mla", "mamba", "dsa", "unified"):
        module = importlib.import_module(f"sglang.srt.mem_cache.pool_host.{name}")
        vars(module).update({each: copy for each, copy in copies.items() if each not in vars(module)})
    # SGLang keeps 10 GiB free beside host pools, which here are small, and tests' machines may be, too.
    importlib.import_module("sglang.srt.mem_cache.pool_host.base").HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    import kvferry_sglang_hash
    from sglang.srt.mem_cache.cpp_utils import native_hash

    native_hash._load_native_hash_module = lambda: kvferry_sglang_hash
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False


def _unpinned(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    original(*args, **{**kwargs, "pin_memory": False})
