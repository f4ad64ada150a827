"""KV caches whose every element says where it belongs, for tests of the block mapping."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from kvferry.layout import KVGeometry, KVGroup

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "fp8_e4m3": 1}
_CARRIER = {4: np.uint32, 2: np.uint16, 1: np.uint8}  # bits are moved, never computed with


def geometry(
    layout: str,
    block_size: int,
    kv_heads: int,
    dtype: str,
    *,
    layers: int = 2,
    head_dim: int = 4,
    num_blocks: int = 24,
    kv_split: str = "KV_INNER",
) -> KVGeometry:
    """A geometry whose `block_bytes` follows from the shape."""
    planes = 1 if kv_split == "LATENT" else 2
    group = KVGroup(
        layer_names=tuple(f"layers.{i}" for i in range(layers)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_bytes=planes * block_size * kv_heads * head_dim * ITEM_BYTES[dtype],
        num_blocks=num_blocks,
        layout=layout,  # type: ignore[arg-type]
        kv_split=kv_split,  # type: ignore[arg-type]
        scales=("1.0",) if dtype.startswith("fp8") else (),
    )
    return KVGeometry(model="grid", dtype=dtype, block_size=block_size, groups=(group,))


def empty_cache(geometry: KVGeometry) -> list[np.ndarray]:
    """One flat byte array per layer, filled with 0xEE."""
    return [np.full(_layer_bytes(geometry), 0xEE, dtype=np.uint8) for _ in geometry.groups[0].layer_names]


def _layer_bytes(geometry: KVGeometry) -> int:
    return geometry.groups[0].num_blocks * geometry.groups[0].block_bytes


def as_tokens(geometry: KVGeometry, flat: np.ndarray) -> np.ndarray:
    """View one layer as [block, plane, token, head, dim], by the engine's own definition of the layout."""
    group = geometry.groups[0]
    block, tokens, heads, dim = group.num_blocks, geometry.block_size, group.kv_heads, group.head_dim
    items = flat.view(_CARRIER[ITEM_BYTES[geometry.dtype]])
    nhd = group.layout == "NHD"
    inner = (tokens, heads) if nhd else (heads, tokens)
    if group.kv_split == "KV_OUTER":
        view = items.reshape(2, block, *inner, dim).transpose(1, 0, 2, 3, 4)
    elif group.kv_split == "KV_INNER":
        view = items.reshape(block, 2, *inner, dim)
    elif group.kv_split == "KV_HEAD":
        return _key_and_value_per_head(group.layout, items.reshape(block, heads, 2, tokens * dim), dim)
    elif group.kv_split == "FUSED":
        view = items.reshape(block, *inner, 2, dim).transpose(0, 3, 1, 2, 4)
    else:
        view = items.reshape(block, 1, *inner, dim)
    return view if nhd else view.swapaxes(2, 3)


def _key_and_value_per_head(layout: str, items: np.ndarray, dim: int) -> np.ndarray:
    """The same view of [block, head, K|V, area], as a structured pair since K may be transposed."""
    block, heads, _, area = items.shape
    value = items.reshape(block, heads, 2, area // dim, dim)
    if layout == "HND":
        return value.transpose(0, 2, 3, 1, 4)
    return _TransposedKey(items.reshape(block, heads, 2, dim, area // dim), value)


class _TransposedKey:
    """Enough of an array [block, plane, token, head, dim] whose plane 0 is stored [dim, token]."""

    def __init__(self, by_dim: np.ndarray, by_token: np.ndarray):
        self._key = by_dim[:, :, 0].transpose(0, 3, 1, 2)
        self._value = by_token[:, :, 1].transpose(0, 2, 1, 3)

    def __getitem__(self, blocks: object) -> np.ndarray:
        key, value = self._key[blocks], self._value[blocks]
        return np.stack([key, value], axis=key.ndim - 3)

    def __setitem__(self, block: int, values: np.ndarray) -> None:
        self._key[block], self._value[block] = values


def expected(geometry: KVGeometry, layer: int, tokens: np.ndarray) -> np.ndarray:
    """Values [token, plane, head, dim] that encode (layer, plane, token, head, dim), made injective by
    mixing."""
    group = geometry.groups[0]
    t, p, h, d = np.ix_(tokens, np.arange(group.planes), np.arange(group.kv_heads), np.arange(group.head_dim))
    code = (((layer * 1031 + t) * 2 + p) * group.kv_heads + h) * group.head_dim + d
    mixed = (code.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    return mixed.astype(_CARRIER[ITEM_BYTES[geometry.dtype]])


def fill(geometry: KVGeometry, cache: list[np.ndarray], blocks: np.ndarray) -> None:
    """Write the expected values of tokens 0.. into `blocks`, in that order."""
    for layer, flat in enumerate(cache):
        view = as_tokens(geometry, flat)
        for position, block in enumerate(blocks):
            tokens = np.arange(geometry.block_size) + position * geometry.block_size
            view[block] = expected(geometry, layer, tokens).transpose(1, 0, 2, 3)


def gather(geometry: KVGeometry, flat: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Values [token, plane, head, dim] of `blocks` in order."""
    view = as_tokens(geometry, flat)[blocks]
    return view.transpose(0, 2, 1, 3, 4).reshape(-1, *view.shape[1:2], *view.shape[3:])


def copy_pieces(pieces: np.ndarray, local: list[np.ndarray], remote: list[np.ndarray]) -> None:
    """Do what a read transfer does, in numpy; region ids are 1-based layer indices."""
    for here, there, to, origin, length in pieces.tolist():
        local[here - 1][to : to + length] = remote[there - 1][origin : origin + length]


def grid() -> Iterator[tuple[KVGeometry, KVGeometry]]:
    """All pairs {NHD,HND}^2 x block size {16,32,64}^2 x heads {1,2,8} x dtypes."""
    layouts, sizes = ("NHD", "HND"), (16, 32, 64)
    choices = itertools.product(ITEM_BYTES, (1, 2, 8), layouts, layouts, sizes, sizes)
    for dtype, heads, our_layout, their_layout, our_size, their_size in choices:
        yield geometry(our_layout, our_size, heads, dtype), geometry(their_layout, their_size, heads, dtype)
