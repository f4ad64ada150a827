"""Asynchronous transfers that somebody will ask after, by number."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable

from kvferry.transfer import Transfer

_MAX_OPEN = 4096  # kept whole until somebody asks for their result
_MAX_RESULTS = 65536  # of more, whether they moved; the oldest are forgotten then


class Batches:
    """Transfers by number, each until its result was told. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Transfer | None] = {}  # None: it could not be started
        self._results: dict[int, bool] = {}
        self._ids = itertools.count(1)

    def keep(self, transfer: Transfer | None) -> int:
        """Take one that was begun, or could not be; return its number."""
        with self._lock:
            if len(self._open) >= _MAX_OPEN:
                over = [key for key, each in self._open.items() if each is None or each.settled]
                for key in over:
                    self._results[key] = _moved(self._open.pop(key))
                while len(self._results) > _MAX_RESULTS:
                    del self._results[next(iter(self._results))]
            batch = next(self._ids)
            self._open[batch] = transfer
        return batch

    def wait_for(self, batches: Iterable[int]) -> bool:
        """Wait until all of these are over, and forget them; whether every one moved all its bytes."""
        all_moved = True
        for batch in batches:
            with self._lock:
                moved = self._results.pop(batch, False)
                transfer = self._open.pop(batch, None)
            if not moved and (transfer is None or not transfer.wait() or not _moved(transfer)):
                all_moved = False
        return all_moved

    def ask(self, batch: int) -> bool | None:
        """Whether one moved all its bytes, and forget it then; None while it is under way."""
        with self._lock:
            transfer = self._open.get(batch)
            if transfer is not None and not transfer.settled:
                return None
            self._open.pop(batch, None)
            return self._results.pop(batch, False) or _moved(transfer)


def _moved(transfer: Transfer | None) -> bool:
    """Say whether a transfer that is over moved all its bytes."""
    return transfer is not None and transfer.error is None
