"""Memory of this process that peers may read or write, and files of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvferry._native import RegionInfo
from kvferry.errors import DeadlineExceededError, StaleError

if TYPE_CHECKING:
    from kvferry.transfer.engine import Engine


class Region:
    """A registered range. Made by `Engine.register` and `Engine.allocate`, which keep the memory alive until
    it is unregistered, and by `Engine.open_file`, which keeps the file open until then.

    Memory that is registered twice (the same address, length, access, kind and name) has two of these with
    one id, and stays reachable until both are unregistered.

    Thread-safe. `memory` is set for allocated regions only: a writable view, which must not be used after
    `unregister` or `Engine.close`.
    """

    def __init__(
        self, engine: Engine, info: RegionInfo, ticket: int, *, read_only: bool, memory: memoryview | None
    ) -> None:
        self._engine = engine
        self._info = info
        self._ticket = ticket  # tells apart registrations of one region
        self._ending = threading.Lock()  # held by the thread that unregisters it
        self._memory = memory
        self.read_only = (
            read_only  # whether our own user forbids writing: then it cannot be the target of a read
        )

    @property
    def id(self) -> int:
        """The id that pieces name."""
        return self._info.id

    @property
    def generation(self) -> int:
        """Tells apart regions that had the same id one after the other."""
        return self._info.generation

    @property
    def name(self) -> str:
        """The name that peers find it by; of a file its path."""
        return self._info.name

    @property
    def length_bytes(self) -> int:
        """Length of the range."""
        return self._info.length_bytes

    @property
    def access(self) -> str:
        """What peers, and for a file our own transfers, may do: "r", "w" or "rw"."""
        return self._info.access

    @property
    def kind(self) -> str:
        """What it is: memory of "host", "cuda", "hip" or "ascend", or a "file"."""
        return self._info.kind

    @property
    def note(self) -> str:
        """How a file's bytes are moved, and why not better, e.g. "buffered: tmpfs keeps files in memory".
        Empty for memory. `NotFoundError` once it is unregistered."""
        return self._engine._file_note(self) if self.kind == "file" else ""

    @property
    def memory(self) -> memoryview:
        """The bytes of an allocated region. `StaleError` if it was registered, not allocated, or is gone."""
        if self._memory is None:
            raise StaleError(
                f"region {self.name!r} has no view: it was not allocated here or was unregistered"
            )
        return self._memory

    @property
    def registered(self) -> bool:
        """Whether it was not unregistered yet."""
        return self._engine._is_registered(self)

    def unregister(self, timeout_s: float = 5.0) -> None:
        """Make it unreachable and wait until no transfer touches it; idempotent.

        Raises `DeadlineExceededError` if a transfer still runs then: the memory stays reserved, call again.
        """
        if not self._ending.acquire(timeout=timeout_s):
            raise DeadlineExceededError(f"another thread still unregisters {self!r} after {timeout_s} s")
        try:
            self._engine._unregister(self, timeout_s)
        finally:
            self._ending.release()

    def __repr__(self) -> str:
        return f"Region(id={self.id}, name={self.name!r}, {self.length_bytes} bytes, access={self.access!r})"

    def _forget_memory(self) -> None:
        self._memory = None
