"""Finds out how vLLM's CPU attention keeps K and V inside a block, by letting it write one and looking.

The kernels pack blocks by instruction set and may change with any vLLM version, so nothing is assumed: if the
written block is not exactly a layout that KVFerry knows, its blocks stay opaque and move whole only.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from kvferry.layout import Layout

logger = logging.getLogger("kvferry.vllm.worker")

_EXACT = 251  # all integers below it are exact in every float dtype that a cache can have


def measure_layout(block: torch.Tensor) -> Layout:
    """Return "HND_KT" if the kernel stores K [dim, token] and V [token, dim] per head, else "OPAQUE".

    `block` is any one block of the cache, shape (heads, tokens, 2 * head_dim); only its shape and dtype are
    used.
    """
    if not block.dtype.is_floating_point or block.element_size() < 2:
        return "OPAQUE"
    heads, tokens, width = block.shape
    try:
        by_token = _written_block(heads, tokens, width // 2, block.dtype, axis=0)
        by_dim = _written_block(heads, tokens, width // 2, block.dtype, axis=2)
    except (ImportError, AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        logger.info(
            "KV blocks move whole only, the attention kernel's layout could not be measured: %s", error
        )
        return "OPAQUE"
    token = torch.arange(tokens) % _EXACT
    dim = torch.arange(width // 2) % _EXACT
    shape = (heads, tokens, width // 2)
    expected_token = _transposed_key(token[None, :, None].expand(shape))
    expected_dim = _transposed_key(dim[None, None, :].expand(shape))
    known = torch.equal(by_token, expected_token) and torch.equal(by_dim, expected_dim)
    return "HND_KT" if known else "OPAQUE"


def _transposed_key(values: torch.Tensor) -> torch.Tensor:
    """One block's content per head, if K and V are both `values` [head, token, dim]."""
    return torch.cat([values.transpose(1, 2).flatten(1), values.flatten(1)], dim=1)


def _written_block(heads: int, tokens: int, head_dim: int, dtype: torch.dtype, *, axis: int) -> torch.Tensor:
    """Let the kernel write K = V = index along `axis` of (token, head, dim); integers [head, 2 * area]."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    index = torch.arange((tokens, heads, head_dim)[axis]) % _EXACT
    shape = [1, 1, 1]
    shape[axis] = -1
    values = index.view(shape).expand(tokens, heads, head_dim).to(dtype).contiguous()
    cache: Any = torch.zeros((2, heads, tokens * 2, head_dim), dtype=dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    slots = torch.arange(tokens, 2 * tokens, dtype=torch.int64)  # all of block 1
    isa = _get_attn_isa(dtype, tokens, head_dim)
    ops.cpu_attn_reshape_and_cache(
        values,
        values.clone(),
        key_cache,
        value_cache,
        slots,
        isa,
        k_scale=1.0,
        v_scale=1.0,
        kv_cache_dtype="auto",
    )
    return cache[1].flatten(1).to(torch.int64)
