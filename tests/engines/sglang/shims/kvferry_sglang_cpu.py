"""For CPU runs in tests only: an SGLang plug-in (entry point in the folder beside it) that lets HiCache and
prefill/decode disaggregation run with `--device cpu`, on SGLang's unchanged package.

Host memory is not pinned, which needs a driver, nor kept free by the GiB; the copies between pools, which
SGLang imports for accelerators only, are those of `sgl_kernel.kvcacheio` here; pages are hashed in Python,
without a compiler; senders take indices without a CUDA event; plain PyTorch is enough attention for a draft
model.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch


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
    attention = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"
    HookRegistry.register(attention, _verified, HookType.AROUND)
    factory = "sglang.srt.speculative.draft_utils.DraftBackendFactory.create_draft_extend_backend"
    HookRegistry.register(factory, _of_draft, HookType.AROUND)


def _unpinned(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    original(*args, **{**kwargs, "pin_memory": False})


def _verified(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of drafts that are verified, which are chains: as of any other tokens behind a prefix."""
    batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[4]
    if batch.forward_mode.is_target_verify():
        batch = copy.copy(batch)
        batch.extend_prefix_lens = batch.seq_lens
        batch.extend_seq_lens = torch.full_like(batch.seq_lens, batch.spec_info.draft_token_num)
        batch.seq_lens = batch.seq_lens + batch.extend_seq_lens
        args = (*args[:4], batch, *args[5:]) if len(args) > 4 else args
        kwargs = {**kwargs, "forward_batch": batch} if "forward_batch" in kwargs else kwargs
    return original(backend, *args, **kwargs)


def _of_draft(_original: Callable[..., Any], factory: Any) -> Any:
    """The draft model's attention: SGLang has none in plain PyTorch."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    backend = TorchNativeAttnBackend(factory.draft_model_runner)
    backend.prefill_attention_backend_str = backend.decode_attention_backend_str = "torch_native"
    return backend
