"""What LMCache counts of an L2 adapter's objects, kept true although the store evicts by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")

MIN_PAUSE_S = 1.0
_MAX_SHARE = 0.1  # of a thread's time that asking may take
_BATCH = 4096  # objects in a question


class Ledger(Generic[Key]):
    """The objects that this adapter stored, each with the bytes that LMCache counts for it. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes: dict[Key, int] = {}
        self._ask_at = 0.0

    def add(self, key: Key, size: int) -> None:
        """Note an object; one that is known keeps its bytes."""
        with self._lock:
            self._bytes.setdefault(key, size)

    def take(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Forget objects, and return those that were known with their bytes."""
        with self._lock:
            return {key: self._bytes.pop(key) for key in keys if key in self._bytes}

    def take_absent(self, present: Callable[[Sequence[Key]], Sequence[bool] | None]) -> dict[Key, int]:
        """Forget objects that the store no longer has, and return them with their bytes. `present` says of
        each whether it is there, or None: nobody knows now. Asks once a second at most, less often where
        that would take more than a tenth of the time.
        """
        begun = self._clock()
        with self._lock:
            if begun < self._ask_at:
                return {}
            self._ask_at = float("inf")  # one at a time
            known = dict(self._bytes)
        gone: list[Key] = []
        try:
            gone = list(_absent(list(known), present))
        finally:
            with self._lock:
                ended = self._clock()
                self._ask_at = ended + max(MIN_PAUSE_S, (ended - begun) / _MAX_SHARE)
        return self.take(gone)


def _absent(keys: Sequence[Key], present: Callable[[Sequence[Key]], Sequence[bool] | None]) -> Iterable[Key]:
    for begin in range(0, len(keys), _BATCH):
        part = keys[begin : begin + _BATCH]
        answer = present(part)
        if answer is None:
            return
        yield from (key for key, there in zip(part, answer, strict=True) if not there)
