"""Memory that programs get from the store: objects to look at, and pools to allocate."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np

from kvferry.store import View

_PAGE = 4096


class BufferHandle(np.ndarray):
    """An object's bytes, to be read in place: an array of bytes that knows Mooncake's `ptr()` and `size()`.

    Pinned in the node's memory as long as the handle, or an array or memoryview made of it, lives.
    """

    @staticmethod
    def of(view: View) -> BufferHandle:
        """Make one; the view's pin goes over to it."""
        handle = np.frombuffer(view.data, np.uint8).view(BufferHandle)
        view.close()  # the bytes hold the pin from here on
        return handle

    def ptr(self) -> int:
        """Return where the bytes begin."""
        return int(self.ctypes.data)

    def size(self) -> int:  # type: ignore[override]
        """Return how many bytes there are."""
        return len(self)

    def __bool__(self) -> bool:
        return len(self) > 0


class MooncakeHostMemAllocator:
    """Zeroed memory, page by page, that lives until it is freed, whatever becomes of the allocator."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _allocated: ClassVar[dict[int, np.ndarray]] = {}

    def alloc(self, size: int) -> int:
        """Return the address of `size` bytes; 0 if there is no such memory."""
        try:
            memory = np.zeros(max(size, 1) + _PAGE, np.uint8)
        except (MemoryError, ValueError):
            return 0
        address = -(-memory.ctypes.data // _PAGE) * _PAGE
        with self._lock:
            self._allocated[address] = memory
        return int(address)

    def free(self, address: int) -> int:
        """Give memory back; 0, or -1 if it is not known."""
        with self._lock:
            return -1 if self._allocated.pop(address, None) is None else 0
