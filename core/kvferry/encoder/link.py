"""The way to the store for threads of ours: opened when first needed, and again after it was lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kvferry.errors import KVFerryError, UnavailableError
from kvferry.store import Store

logger = logging.getLogger("kvferry.encoder")

RETRY_S = 1.0
QUIET_S = 60.0


class StoreLink:
    """One store, opened by whoever asks first. Thread-safe; nothing here may be called from an engine's loop.

    After a failed attempt others fail at once for `RETRY_S`, so that requests do not queue behind a node that
    is not there.
    """

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open = open_store
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._retry_at_s = 0.0
        self._warn_at_s = 0.0
        self._closed = False

    def store(self) -> Store:
        """Return the store. Raises `UnavailableError` and the other errors of `open_store`."""
        with self._lock:
            if self._closed:
                raise UnavailableError("the encoder's way to the store is closed")
            if self._store is not None:
                return self._store
            now = time.monotonic()
            if now < self._retry_at_s:
                raise UnavailableError("the store could not be opened a moment ago")
            self._retry_at_s = now + RETRY_S
            try:
                self._store = self._open()
            except KVFerryError as error:
                self._warn(now, error)
                raise
            return self._store

    def close(self) -> None:
        """Detach; idempotent."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _warn(self, now: float, error: KVFerryError) -> None:
        if now >= self._warn_at_s:
            self._warn_at_s = now + QUIET_S
            logger.warning("encoder outputs are neither shared nor reused: %s", error)
