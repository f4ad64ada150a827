"""Where an engine's blocks lie, as the pool moves them: all layers of a group, one run each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvferry.errors import UnsupportedError
from kvferry.layout import CacheMemory, KVGeometry


class GroupMemory(NamedTuple):
    """Where one group's blocks lie: layer i's block b at `addresses[i] + b * strides[i]`, `block_bytes[i]`
    of them."""

    addresses: np.ndarray  # uint64 [layers]
    block_bytes: np.ndarray  # uint64 [layers]
    strides: np.ndarray  # uint64 [layers]
    num_blocks: int


def memory_of(memory: CacheMemory, geometry: KVGeometry) -> list[GroupMemory]:
    """Return where the blocks lie, by list of block ids. Raises UnsupportedError if a layer's block is not
    one run of memory."""
    found = []
    for table in range(geometry.tables):
        layers = [
            (memory.places[name].address, group.block_bytes, group.block_stride or group.block_bytes)
            for index, group in enumerate(geometry.groups)
            if geometry.table_of(index) == table
            for name in group.layer_names
        ]
        if any(group.head_stride for group in geometry.groups):
            raise UnsupportedError(
                "the pool needs blocks that are one run of memory each: set pool.enabled to off"
            )
        numbers = np.array(layers, dtype=np.uint64).reshape(-1, 3)
        found.append(GroupMemory(numbers[:, 0], numbers[:, 1], numbers[:, 2], geometry.groups[0].num_blocks))
    return found
