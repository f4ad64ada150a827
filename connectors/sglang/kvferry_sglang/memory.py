"""Where pages lie in one of SGLang's host pools.

SGLang tells the pieces of a page by a loop over layers and pages. Their addresses are linear in the page's
first slot in all of its pools so far; where three pages confirm that, they are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvferry.errors import OutOfRangeError
from kvferry.store import Runs

# What else tells pools of one class and equal page sizes apart.
_SHAPE = ("layout", "dtype", "head_dim", "v_head_dim", "start_layer", "end_layer", "storage_format_tag")


class PageMemory:
    """The pages of one host pool; `parts` > 1: each in so many parts of equal heads. Immutable, thread-safe.

    `tensor` makes what the pool takes as indices of an int64 array. Raises what the pool raises if it cannot
    tell where its pages are.
    """

    def __init__(
        self, pool: Any, *, parts: int = 1, tensor: Callable[[np.ndarray], Any] = np.asarray
    ) -> None:
        self._pool = pool
        self._parts = parts
        self._tensor = tensor
        self.page = int(pool.page_size or 1)
        self.buffers = _buffers(pool)
        self._slots = int(pool.size)
        first, self._lengths = self._page_at(0)
        self._first, self._slot_bytes = first, self._strides(first)
        self.page_bytes = int(self._lengths.sum())
        spans = [(each.data_ptr(), each.data_ptr() + _size(each)) for each in self.buffers]
        self._spans = np.array(sorted(spans), dtype=np.uint64).reshape(-1, 2)

    def describe(self) -> str:
        """Return text that differs where the bytes of a page are arranged differently."""
        shape = {name: getattr(self._pool, name, None) for name in _SHAPE}
        per_part = self._lengths.reshape(self._parts, -1)[0].tolist()
        shape["heads"] = (getattr(self._pool, "head_num", 0) or 0) // self._parts
        words = " ".join(f"{name}={value}" for name, value in shape.items() if value not in (None, ""))
        return f"{type(self._pool).__name__} {words} pieces={per_part}"

    def runs(self, indices: Any, pages: int) -> Runs:
        """Return where `pages` pages lie, by the slots of their tokens: int64 in the host's memory.

        Raises OutOfRangeError if they are not so many, or leave the pool's memory.
        """
        found = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(found) != pages * self.page:
            raise OutOfRangeError(f"{len(found)} slots are not {pages} pages of {self.page}")
        slots = found[:: self.page]
        if self._slot_bytes is not None:
            self._check_slots(slots)
            addresses = self._first[None, :] + slots[:, None].astype(np.uint64) * self._slot_bytes[None, :]
            addresses, lengths = addresses.reshape(-1), np.tile(self._lengths, pages)
        else:
            addresses, lengths = self._pieces(found)
        self._check_memory(addresses, lengths)
        values = pages * self._parts
        counts = np.full(values, len(lengths) // values if values else 0, dtype=np.int64)
        return Runs(addresses, lengths, counts, [])

    def _pieces(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wanted = self._tensor(slots)
        if self._parts > 1:
            addresses, lengths = self._pool.get_split_heads_page_buffer_meta(wanted, self._parts)
        else:
            addresses, lengths = self._pool.get_page_buffer_meta(wanted)
        return np.array(addresses, dtype=np.uint64), np.array(lengths, dtype=np.uint64)

    def _page_at(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        return self._pieces(np.arange(slot, slot + self.page, dtype=np.int64))

    def _strides(self, first: np.ndarray) -> np.ndarray | None:
        """Return by how much each piece moves on for each slot; None if that is not linear."""
        last = (self._slots // self.page - 1) * self.page
        if last < 2 * self.page or getattr(self._pool, "shared_allocation_domain", None) is not None:
            return None
        second, _ = self._page_at(self.page)
        final, lengths = self._page_at(last)
        steps, rest = np.divmod(second - first, np.uint64(self.page))
        linear = not rest.any() and (first + np.uint64(last) * steps == final).all()
        return steps if linear and (lengths == self._lengths).all() else None

    def _check_slots(self, slots: np.ndarray) -> None:
        if len(slots) and (slots.min() < 0 or slots.max() + self.page > self._slots):
            raise OutOfRangeError(f"slots {slots.min()} to {slots.max()} leave the pool of {self._slots}")

    def _check_memory(self, addresses: np.ndarray, lengths: np.ndarray) -> None:
        if not len(self._spans):
            return
        at = np.searchsorted(self._spans[:, 0], addresses, side="right").astype(np.int64) - 1
        if (at < 0).any() or (addresses + lengths > self._spans[np.maximum(at, 0), 1]).any():
            raise OutOfRangeError("a page's piece lies outside the pool's memory")


def _buffers(pool: Any) -> list[Any]:
    """Return the tensors or storages that pages lie in."""
    found = getattr(pool, "get_hybrid_pool_buffer", None)
    buffers = found() if found is not None else [getattr(pool, "kv_buffer", None)]
    return [each for each in buffers if each is not None and _size(each)]


def _size(buffer: Any) -> int:
    """Return the bytes of a tensor or of a storage, which says so by a method."""
    return int(buffer.nbytes() if callable(buffer.nbytes) else buffer.nbytes)
