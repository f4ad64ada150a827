"""Where an engine's KV cache tensors lie in memory. For tensors that have torch's interface; imports none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvferry.errors import UnsupportedError


class Region(NamedTuple):
    """One run of memory to register; `tensor` is a flat view of it."""

    name: str
    length_bytes: int
    tensor: Any


class Place(NamedTuple):
    """Where one layer's blocks lie. `tensor` has the logical shape (blocks, heads, tokens, content)."""

    region: str
    offset: int  # of block 0, in the region
    address: int  # of block 0
    tensor: Any

    def stride(self, axis: int) -> int:
        """Bytes from one block (axis 0), head (1) or token (2) to the next."""
        return int(self.tensor.stride(axis)) * int(self.tensor.element_size())

    def content(self, axes: int) -> int:
        """Bytes of the innermost 1, 2 or 3 axes together, if they are packed."""
        size = int(self.tensor.element_size())
        for axis in range(4 - axes, 4):
            size *= int(self.tensor.shape[axis])
        return size


class CacheMemory(NamedTuple):
    """A worker's whole KV cache."""

    regions: tuple[Region, ...]
    places: Mapping[str, Place]  # by layer name


def cache_memory(kv_caches: Mapping[str, Any]) -> CacheMemory:
    """Return where each layer lies; layers whose memory overlaps (side by side, or of groups that take turns
    in it) share a region.

    `kv_caches`: tensors of logical shape (blocks, heads, tokens, content) by layer name. Raises
    UnsupportedError when one is in device memory or of another shape.
    """
    spans = []
    for name in sorted(kv_caches):
        tensor = kv_caches[name]
        if tensor.device.type != "cpu":
            raise UnsupportedError(
                f"the KV cache is in {tensor.device.type} memory, and KVFerry here moves host "
                "memory only: it serves engines on the CPU"
            )
        if len(tensor.shape) != 4 or int(tensor.stride(3)) != 1:
            raise UnsupportedError(
                f"layer {name} keeps its KV cache as {tuple(tensor.shape)} with strides "
                f"{tuple(tensor.stride())}, and KVFerry knows (blocks, heads, tokens, content)"
            )
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        begin = int(tensor.data_ptr())
        spans.append((begin, begin + (last + 1) * int(tensor.element_size()), name))
    regions: list[Region] = []
    places: dict[str, Place] = {}
    for begin, end, names in _merged(sorted(spans)):
        first = kv_caches[names[0]]
        count = (end - begin) // int(first.element_size())
        regions.append(Region(names[0], end - begin, first.as_strided((count,), (1,))))
        for name in names:
            address = int(kv_caches[name].data_ptr())
            places[name] = Place(names[0], address - begin, address, kv_caches[name])
    return CacheMemory(tuple(regions), places)


def _merged(spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, list[str]]]:
    """Join spans that overlap; they are sorted by their begin."""
    found: list[tuple[int, int, list[str]]] = []
    for begin, end, name in spans:
        if found and begin < found[-1][1]:
            last = found[-1]
            found[-1] = (last[0], max(last[1], end), [*last[2], name])
        else:
            found.append((begin, end, [name]))
    return found
