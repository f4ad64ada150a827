"""How KV cache blocks lie in memory, whether two engines' caches fit together, and which bytes to move.

`KVGeometry` describes one engine rank's cache; it is exchanged at first contact as the transfer engine's
metadata. `check_compatible` refuses pairs that cannot be mapped; `sources_of` tells which ranks of the other
engine a rank reads from; `map_blocks` turns block ids into pieces to transfer.
"""

from __future__ import annotations

from kvferry.layout.compatibility import check_compatible
from kvferry.layout.geometry import MAX_ENCODED_BYTES, STATE, KVGeometry, KVGroup, Layout
from kvferry.layout.mapping import map_blocks
from kvferry.layout.ranks import Source, sources_of
from kvferry.layout.tensors import CacheMemory, Place, Region, cache_memory

__all__ = [
    "MAX_ENCODED_BYTES",
    "STATE",
    "CacheMemory",
    "KVGeometry",
    "KVGroup",
    "Layout",
    "Place",
    "Region",
    "Source",
    "cache_memory",
    "check_compatible",
    "map_blocks",
    "sources_of",
]
