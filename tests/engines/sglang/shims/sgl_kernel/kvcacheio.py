"""For CPU runs in tests only: SGLang's copies between a KV pool and its host pool, in numpy.

How the host side is laid out, by the letters in the names, in bytes: `lf`, a buffer for each layer, a row a
token; `pf`, a row a token with all layers (`stride` bytes); `ph`, [page, head, token, layer, part of the
row]; `direct`, tensors [page, layer, token, ...].
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch


def _bytes(address: int, length: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=np.uint8)


def _rows(address: int, stride: int, indices: np.ndarray, item: int) -> np.ndarray:
    """All rows up to the last one that is named, [rows, item]."""
    count = int(indices.max()) + 1
    data = _bytes(address, (count - 1) * stride + item)
    return np.lib.stride_tricks.as_strided(data, (count, item), (stride, 1))


def _index(indices: torch.Tensor) -> np.ndarray:
    return indices.detach().cpu().numpy().astype(np.int64)


def _copy(source: tuple[int, int, torch.Tensor], target: tuple[int, int, torch.Tensor], item: int) -> None:
    """Copy rows; each side is (address, stride, indices)."""
    if source[2].numel() == 0:
        return
    from_, to = _index(source[2]), _index(target[2])
    _rows(target[0], target[1], to, item)[to] = _rows(source[0], source[1], from_, item)[from_]


def transfer_kv_per_layer_mla(src, dst, src_indices, dst_indices, item_size, *_rest: Any) -> None:
    _copy((src.data_ptr(), item_size, src_indices), (dst.data_ptr(), item_size, dst_indices), item_size)


def transfer_kv_per_layer(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, item_size, *_rest: Any
) -> None:
    transfer_kv_per_layer_mla(src_k, dst_k, src_indices, dst_indices, item_size)
    transfer_kv_per_layer_mla(src_v, dst_v, src_indices, dst_indices, item_size)


def transfer_kv_all_layer_mla(
    src_layers, dst_layers, src_indices, dst_indices, item_size, num_layers, *_rest: Any
) -> None:
    for source, target in zip(
        src_layers.tolist()[:num_layers], dst_layers.tolist()[:num_layers], strict=True
    ):
        _copy((source, item_size, src_indices), (target, item_size, dst_indices), item_size)


def transfer_kv_all_layer(
    src_k_layers, dst_k_layers, src_v_layers, dst_v_layers, src_indices, dst_indices, item_size, num_layers,
    *_rest: Any,
) -> None:  # fmt: skip
    transfer_kv_all_layer_mla(src_k_layers, dst_k_layers, src_indices, dst_indices, item_size, num_layers)
    transfer_kv_all_layer_mla(src_v_layers, dst_v_layers, src_indices, dst_indices, item_size, num_layers)


def transfer_kv_per_layer_mla_pf_lf(
    src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim, *_rest: Any
) -> None:
    source = (src.data_ptr() + layer_id * item_size, src_layout_dim, src_indices)
    _copy(source, (dst.data_ptr(), item_size, dst_indices), item_size)


def transfer_kv_per_layer_pf_lf(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, item_size, src_layout_dim, *_rest: Any
) -> None:
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla_pf_lf(
            source, target, src_indices, dst_indices, layer_id, item_size, src_layout_dim
        )


def transfer_kv_all_layer_mla_lf_pf(
    src_layers, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers, *_rest: Any
) -> None:
    for layer, source in enumerate(src_layers.tolist()[:num_layers]):
        target = (dst.data_ptr() + layer * item_size, dst_layout_dim, dst_indices)
        _copy((source, item_size, src_indices), target, item_size)


def transfer_kv_all_layer_lf_pf(
    src_k_layers, dst_k, src_v_layers, dst_v, src_indices, dst_indices, item_size, dst_layout_dim, num_layers,
    *_rest: Any,
) -> None:  # fmt: skip
    for sources, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(
            sources, target, src_indices, dst_indices, item_size, dst_layout_dim, num_layers
        )


def _by_head(
    address: int, indices: np.ndarray, layout_dim: int, layer: int, item: int, page: int, heads: int
) -> np.ndarray:
    """One layer of the pages up to the last one that is named: [page, token, head, part of the row]."""
    part, token = item // heads, layout_dim // heads
    pages = -(-(int(indices.max()) + 1) // page)
    data = _bytes(address, pages * page * layout_dim)[layer * part :]
    strides = (page * layout_dim, token, page * token, 1)
    return np.lib.stride_tricks.as_strided(data, (pages, page, heads, part), strides)


def transfer_kv_per_layer_ph_lf(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, item_size, src_layout_dim, page_size,
    head_num, *_rest: Any,
) -> None:  # fmt: skip
    if src_indices.numel() == 0:
        return
    from_, to = _index(src_indices), _index(dst_indices)
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        pages = _by_head(source.data_ptr(), from_, src_layout_dim, layer_id, item_size, page_size, head_num)
        found = pages[from_ // page_size, from_ % page_size].reshape(len(from_), item_size)
        _rows(target.data_ptr(), item_size, to, item_size)[to] = found


def transfer_kv_all_layer_lf_ph(
    src_k_layers, dst_k, src_v_layers, dst_v, src_indices, dst_indices, item_size, dst_layout_dim, num_layers,
    page_size, head_num, *_rest: Any,
) -> None:  # fmt: skip
    if src_indices.numel() == 0:
        return
    from_, to = _index(src_indices), _index(dst_indices)
    for sources, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        for layer, source in enumerate(sources.tolist()[:num_layers]):
            pages = _by_head(target.data_ptr(), to, dst_layout_dim, layer, item_size, page_size, head_num)
            rows = _rows(source, item_size, from_, item_size)[from_]
            pages[to // page_size, to % page_size] = rows.reshape(len(from_), head_num, -1)


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices].to(target.device)


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size
) -> None:
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        for at in range(0, len(src_indices), page_size):
            first = int(dst_indices[at])
            target[first : first + page_size] = source[int(src_indices[at]) // page_size, layer_id]


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size) -> None:
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        target, layer = dst_ptrs[number // layers], number % layers
        for at in range(0, len(src_indices), page_size):
            first = int(src_indices[at])
            target[int(dst_indices[at]) // page_size, layer] = source[first : first + page_size]


def get_device_accessible_ptr(tensor, device_index: int = 0) -> int:
    return tensor.data_ptr()
